"""The glossary is short, and public names use its words."""

from __future__ import annotations

import dataclasses
import inspect
import pathlib
import re

import click
import pytest

import rmq
from rmq.cli import cli
from rmq.http_framework import requests
from rmq.kernel.core import metrics
from rmq.kernel.transport.lua import script_loader
from rmq.server import api

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| \*\*(.+?)\*\* \| (.+) \|$", re.MULTILINE)
TERMS = dict(ROW.findall((ROOT / "docs/glossary.md").read_text()))

# Words that public names use in their usual meaning: of everyday English, of Redis, or of queues
# and servers in general. A word with a meaning of RMQ's own belongs in docs/glossary.md instead.
PLAIN_ENGLISH = {
    # programming
    "admin", "async", "client", "error", "errors", "id", "mismatch", "outcome", "page", "result",
    "script", "settings", "span", "unknown", "value", "invalid", "failure",
    "configuration", "completion", "compressed", "content", "explain", "top", "rmq",
    "total", "seconds",
    "sent", "handled", "taken", "held", "format", "encrypted", "offloaded",
    # errors and states
    "already", "unavailable", "storage", "decode", "encode", "embedded", "empty", "found", "not",
    "access", "denied", "start", "step", "stop", "line",
    "full", "large", "long", "too", "payload", "owned", "vanished", "failed", "work", "back",
    "rolled", "outgoing", "durable", "lateness",
    # durability and retry policies, by the name of the technique
    "fsync", "replicated", "exponential", "immediate", "levels", "snooze",
    # other queues and servers
    "attempt", "concurrency", "depends", "dlq", "duplicate", "expire", "extend", "filter",
    "health", "hold", "idempotent", "interceptor", "leader", "lifespan", "lost", "missing", "pause",
    "publish", "purge", "rate", "renew", "reschedule", "resize", "resume", "sample",
    "scheduler", "server", "service", "status", "token", "type", "withdraw",
    # Redis' access control
    "acl", "rules", "revoke",
    # verbs of a command line and of a store
    "export", "import", "restore",
    "close", "create", "delete", "deleted", "forget", "get", "show", "ls", "tail", "run", "set",
    "send", "peek", "generate", "ping", "resend", "void", "cancel", "stats", "take", "read",
    "next", "sweep", "tidy", "begin", "end", "push", "keep", "again", "finish", "drop",
    "unclaim", "inspect", "locate", "count", "counts",
    # the doctor
    "doctor", "finding", "config",
    # definitions as a file
    "apply",
    # metrics
    "idle", "done", "event", "oldest", "slo", "wanted", "running",
    # streaming queries, as Spark and Kafka name them
    "rows", "bytes", "batches", "lapses", "lag", "commands",
    # scripts of the audit and of the query log
    "report", "open", "scan", "ready",
}  # fmt: skip


def words_of(name: str) -> list[str]:
    """The words of a CamelCase, snake_case or dashed name, in lower case."""
    parts = re.findall(r"[A-Z]{2,}(?![a-z])|[A-Z]?[a-z0-9]+", name)
    return [part.lower() for part in parts]


def stem(word: str) -> str:
    """A word without the ending of a plural, a past tense or an -ing form."""
    for ending, instead in (("ies", "y"), ("ied", "y"), ("ing", ""), ("ed", ""), ("es", ""),
                            ("s", ""), ("e", ""), ("n", "")):  # fmt: skip
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)] + instead
    return word


def glossary_stems() -> set[str]:
    """The words that the glossary defines: its terms, and the words in backticks beside them."""
    texts = [*TERMS, *(code for text in TERMS.values() for code in re.findall(r"`(.+?)`", text))]
    return {stem(word) for text in texts for word in words_of(text)}


def cli_names() -> set[str]:
    """Every word that is typed as a command or a group of commands."""
    names: set[str] = set()

    def add(group: click.Group) -> None:
        context = click.Context(group)
        for name in group.list_commands(context):
            names.add(name)
            command = group.get_command(context, name)
            if isinstance(command, click.Group):
                add(command)

    add(cli)
    return names


NAMES = {
    "rmq": lambda: set(rmq.__all__),
    "the command line": cli_names,
    "metrics": lambda: {metric.name for metric in (*metrics.METRICS, *metrics.SERVER_METRICS)},
    "scripts": lambda: set(script_loader.names()),
}


def test_the_glossary_has_at_most_40_terms_of_one_sentence_each() -> None:
    assert 30 <= len(TERMS) <= 40
    for term, text in TERMS.items():
        sentences = re.sub(r"`[^`]*`|e\.g\.", "", text)
        assert text.endswith("."), term
        assert len(re.findall(r"[.!?](?:\s|$)", sentences)) == 1, term


def test_every_row_of_the_glossary_is_read_and_no_term_stands_twice() -> None:
    text = (ROOT / "docs/glossary.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| **")]
    assert len(rows) == len(TERMS)


@pytest.mark.parametrize("source", NAMES)
def test_public_names_use_the_words_of_the_glossary(source: str) -> None:
    names = NAMES[source]()
    known = glossary_stems() | {stem(word) for word in PLAIN_ENGLISH}

    unknown = {name: [w for w in words_of(name) if stem(w) not in known] for name in names}

    assert len(names) > 5
    assert {name: words for name, words in unknown.items() if words} == {}, (
        "use a word of docs/glossary.md, or add the term there (at most 40)"
    )


def test_a_name_with_an_unknown_noun_is_noticed() -> None:
    known = glossary_stems() | {stem(word) for word in PLAIN_ENGLISH}
    assert stem("parcel") not in known
    assert words_of("QueryOwned") == ["query", "owned"]
    assert words_of("RMQError") == ["rmq", "error"]
    assert words_of("rmq_lease_lost_total") == ["rmq", "lease", "lost", "total"]


def test_every_allowed_word_is_in_use_and_not_a_term_already() -> None:
    defined = glossary_stems()
    used = {stem(word) for names in NAMES.values() for name in names() for word in words_of(name)}
    assert sorted(word for word in PLAIN_ENGLISH if stem(word) not in used) == []
    assert sorted(word for word in PLAIN_ENGLISH if stem(word) in defined) == []


def below(base: type) -> set[type]:
    """All classes that are made of one, in the modules that the HTTP API imports."""
    assert api.TABLES
    return {base, *(each for child in base.__subclasses__() for each in below(child))}


def parameters() -> set[tuple[str, str]]:
    """Return all parameters of verbs: arguments of Admin, fields of the HTTP API, options."""
    found = {
        (f"Admin.{name}", parameter)
        for name, verb in inspect.getmembers(rmq.Admin, inspect.isfunction)
        for parameter in inspect.signature(verb).parameters
    }
    for request in below(requests.Request):
        found |= {(f"HTTP {request.__name__}", name) for name in request.__struct_fields__}
    context = click.Context(cli)
    commands = [(name, cli.get_command(context, name)) for name in cli.list_commands(context)]
    while commands:
        name, command = commands.pop()
        if isinstance(command, click.Group):
            commands += [(f"{name} {each}", inner) for each, inner in command.commands.items()]
        found |= {(name, option) for each in command.params for option in each.opts}
    return found


def test_a_queue_and_a_cursor_have_one_name_in_admin_http_and_command_line() -> None:
    other = {"place", "after", "--place", "--after", "marker", "offset", "--offset"}

    assert [each for each in sorted(parameters()) if each[1] in other] == []
    assert {("Admin.peek", "queue"), ("HTTP PeekQuery", "queue"), ("peek", "--queue")} <= (
        parameters()
    )
    assert {
        ("Admin.dead_letters", "cursor"),
        ("HTTP DeadQuery", "cursor"),
        ("dlq ls", "--cursor"),
    } <= (parameters())
    assert {("Message", each.name) for each in dataclasses.fields(rmq.Message)} >= {
        ("Message", "queue")
    }
