"""Explain what the ACL of a Redis user refused: the command, key or channel, and the rule to add.

Servers say it in different words. Redis 6.2 and 7.0 do not name a command that they refuse inside
a script; the line they name tells which it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rmq.errors import AccessDenied
from rmq.protocol import acl, functions, scripts

_USER = re.compile(r"\bUser (\S+) has no permissions")
_COMMAND = re.compile(r"run the '([^']+)' command")
_LINE = re.compile(r"@user_(script|function):\s*(\d+)")
_SLOT_KEY = re.compile(r"(.+:\{.+\}:).*", re.DOTALL)


def denied(what: str, text: str, keys: Sequence[str]) -> AccessDenied:
    """Return the error for a refusal.

    Args:
        what: the verb that was called.
        text: what Redis answered.
        keys: the keys of the call, or the channel.
    """
    told = _USER.search(text)
    user = told[1] if told else "<user>"
    if "channel" in text:
        stem = keys[0].split("{")[0] if keys else "rmq:"
        right, rules = f"the channel {keys[0] if keys else ''}".rstrip(), [f"&{stem}*"]
    elif "key" in text and not _COMMAND.search(text):
        patterns = dict.fromkeys(_pattern(key) for key in keys)
        right, rules = f"a key of {', '.join(patterns)}", [f"~{pattern}" for pattern in patterns]
    else:
        commands = _commands(what, text)
        right = " or ".join(command.replace("|", " ").upper() for command in commands)
        rules = [f"+{command}" for command in commands]
    if not rules or not right:
        return AccessDenied(
            f"{what}: Redis refused access ({text[:200]}); check the ACL of the user. "
            "rmq acl generate prints what each role needs"
        )
    return AccessDenied(
        f"{what}: Redis user {user} has no right to {right}. Grant it: ACL SETUSER {user} "
        f"{' '.join(_quoted(rule) for rule in rules)} (rmq acl generate prints all that a role "
        "needs)"
    )


def _commands(what: str, text: str) -> list[str]:
    """Return the command that was refused; several where the line of the script has more."""
    named = _COMMAND.search(text)
    if named:
        return [_with_subcommand(named[1].lower())]
    line = _LINE.search(text)
    if not line or what not in scripts.names():
        return []
    is_script = line[1] == "script"
    text = scripts.load(what).text if is_script else functions.library_text("")
    lines, number = text.splitlines(), int(line[2])
    return sorted(acl.commands_of_text(lines[number - 1])) if number <= len(lines) else []


def _with_subcommand(command: str) -> str:
    """Return the rule for a command; Redis 6.2 does not name the subcommand."""
    rules = {"script": "script|load", "pubsub": "pubsub|numsub", "cluster": "cluster|slots"}
    return rules.get(command, command)


def _pattern(key: str) -> str:
    """Return a pattern for the keys of the same slot."""
    slot = _SLOT_KEY.fullmatch(key)
    return f"{slot[1]}*" if slot else key


def _quoted(rule: str) -> str:
    return rule if rule.startswith("+") else f"'{rule}'"
