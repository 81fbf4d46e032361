"""The commands `rmq topic export` and `rmq topic apply`: definitions of topics in one file.

A definition has the settings and the schedules of a topic, but no messages, message counts or
pauses.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import click

import rmq
from rmq.cli_framework import output, text as terminal_text
from rmq.cli_framework.app import PARTLY, USAGE, Command, Failed
from rmq.cli_framework.confirm import YES, confirm
from rmq.cli_framework.options import common_options
from rmq.kernel.core import settings
from rmq.kernel.core.validation import format_duration, parse_duration

Definitions = dict[str, dict[str, Any]]  # by topic: its settings by name, and `schedules`
DURATIONS = ("lease", "dedup_window", "expires", "dead_retention", "unhandled")
SCHEDULE_DURATIONS = ("every", "jitter", "expires")
SCHEDULE_DEFAULTS: dict[str, Any] = {
    "every": None, "cron": None, "tz": "UTC", "jitter": 0.0, "catch_up": "last",
    "catch_up_limit": 100, "body": "null", "priority": None, "headers": {}, "expires": None,
    "type": None,
}  # fmt: skip


@click.command(
    "export",
    cls=Command,
    examples=("rmq topic export > topics.toml", "rmq topic export orders --json > orders.json"),
)
@click.argument("names", metavar="[NAME]...", nargs=-1)
def export(names: tuple[str, ...]) -> None:
    """Print the definitions of the topics NAME, or of all topics, as TOML for `rmq topic apply`.

    A definition has settings and schedules, but no messages and no pauses.
    """
    common = common_options()
    with common.client() as client:
        found, problems = {}, []
        for name in names or client.admin.topics():
            try:
                found[name] = _defined(client, name)
            except (rmq.Unavailable, rmq.OutcomeUnknown):
                raise
            except rmq.RMQError as error:
                if names:
                    raise
                problems.append(f"{name}: {error}")  # continue with the other topics
    if common.json:
        output.document({"topics": found})
    for name, values in () if common.json else found.items():
        schedules = values.pop("schedules", {})
        _print_table(("topics", name), values)
        for schedule, fields in schedules.items():
            _print_table(("topics", name, "schedules", schedule), fields)
    if problems:
        raise Failed("; ".join(problems))


def _print_table(path: tuple[str, ...], values: Mapping[str, Any]) -> None:
    click.echo(
        "[" + ".".join([path[0], *map(_toml, path[1:2]), *path[2:3], *map(_toml, path[3:])]) + "]"
    )
    for key, value in values.items():
        click.echo(f"{key} = {_toml(value)}")
    click.echo()


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_toml(k)} = {_toml(v)}" for k, v in value.items()) + " }"
    # A JSON string is also a TOML string, except for this character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def setting_value(name: str, value: Any) -> Any:
    """Return a setting in the form that people write. Durations have a unit."""
    return (format_duration(value) if value else "off") if name in DURATIONS else value


def _defined(client: rmq.Client, name: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in client.admin.settings(name).shown().items():
        values[key] = setting_value(key, value)
    schedules = {}
    for state in client.admin.schedules(name):
        try:
            body = json.dumps(state.body, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError):
            common_options().note(f"{name}: schedule {state.name} is omitted: its body is not JSON")
            continue
        fields = {key: getattr(state, key) for key in SCHEDULE_DEFAULTS} | {"body": body}
        fields["headers"] = dict(state.headers)
        for key in SCHEDULE_DURATIONS:
            fields[key] = fields[key] and format_duration(fields[key])
        fields["jitter"] = fields["jitter"] or 0.0
        schedules[state.name] = {
            key: value for key, value in fields.items() if value != SCHEDULE_DEFAULTS[key]
        }
    return values | ({"schedules": schedules} if schedules else {})


# --- apply ---------------------------------------------------------------------------------------


class _Change(NamedTuple):
    """A difference between the file and Redis, and the function that changes Redis."""

    text: str
    make: Callable[[], object]


@click.command(
    "apply",
    cls=Command,
    examples=("rmq topic apply topics.toml --dry-run", "rmq topic apply topics.toml --yes"),
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--dry-run", is_flag=True, help="Only show the differences; change nothing.")
@YES
def apply(file: str, dry_run: bool, yes: bool) -> None:
    """Create and change topics as FILE defines them.

    FILE has TOML or JSON, as `rmq topic export` prints. The command first shows the differences.
    Then it creates missing topics, and changes settings and schedules that differ. It does not
    change topics, settings and schedules that FILE does not name. If a setting cannot be changed,
    the command changes nothing, and the exit code is 2.
    """
    common = common_options()
    definitions = _read(Path(file))
    with common.client() as client:
        changes = _changes(client, definitions)
        texts = [change.text for change in changes]
        if not common.json:
            for text in texts or ["nothing to change"]:
                click.echo(terminal_text.neutral(text))
        if changes and not dry_run:
            confirm("apply", f"make {terminal_text.plural(len(changes), 'change')}", yes, "command")
            _make(changes)
    if common.json:
        output.document({"dry_run": dry_run, "changes": texts})


def _make(changes: list[_Change]) -> None:
    for done, change in enumerate(changes):
        try:
            change.make()
        except rmq.RMQError as error:
            if not done:
                raise
            raise Failed(
                f"{change.text}: {error}; {done} of {len(changes)} changes are made, run it again",
                PARTLY,
            ) from error


def _read(path: Path) -> Definitions:
    try:
        text = path.read_text(encoding="utf-8")
        read = json.loads(text) if text.lstrip().startswith("{") else tomllib.loads(text)
    except (ValueError, OSError) as error:
        raise Failed(f"{path}: neither TOML nor JSON: {error}", USAGE) from None
    topics = read.get("topics")
    if set(read) != {"topics"} or not isinstance(topics, dict):
        raise Failed(f'{path}: use [topics."NAME"], like rmq topic export', USAGE)
    for name, values in topics.items():
        if not isinstance(values, dict) or not isinstance(values.get("schedules", {}), dict):
            raise Failed(f"{path}: topics.{name}: not a table", USAGE)
    return topics


def _changes(client: rmq.Client, definitions: Definitions) -> list[_Change]:
    """Check the file, and return the differences between the file and Redis."""
    known, changes = set(client.admin.topics()), list[_Change]()
    for name, values in definitions.items():
        try:
            asked = {key: _value(key, value) for key, value in values.items() if key != "schedules"}
            if name in known:
                changes += _settings_changes(client, name, asked)
            else:
                rmq.Settings(**settings.check(asked))
                topic = client.topic(name, **asked)
                shown = ", ".join(f"{key} {values[key]}" for key in asked)
                changes.append(_Change(f"+ {name}: {shown}", topic.open))
            changes += _schedule_changes(client, name, values.get("schedules", {}), name in known)
        except (rmq.ConfigurationError, ValueError, TypeError) as error:
            raise Failed(f"{name}: {error}; nothing was changed", USAGE) from error
    return changes


def _value(key: str, value: Any) -> Any:
    if key in DURATIONS and isinstance(value, str):
        return 0 if value == "off" else parse_duration(value)
    return value


def _settings_changes(client: rmq.Client, name: str, asked: dict[str, Any]) -> list[_Change]:
    current = client.admin.settings(name)
    wanted, before = replace(current, **settings.check(asked)).shown(), current.shown()
    changed = {key: asked[key] for key in asked if wanted[key] != before[key]}
    if not changed:
        return []
    settings.check_changes(changed)
    text = ", ".join(
        f"{key} {setting_value(key, before[key])} -> {setting_value(key, wanted[key])}"
        for key in changed
    )
    return [_Change(f"~ {name}: {text}", lambda: client.admin.topic_set(name, **changed))]


def _schedule_changes(
    client: rmq.Client, name: str, schedules: Mapping[str, Any], is_known: bool
) -> list[_Change]:
    changes = list[_Change]()
    current = _defined(client, name).get("schedules", {}) if is_known and schedules else {}
    for schedule, fields in schedules.items():
        unknown = set(fields) - set(SCHEDULE_DEFAULTS)
        if unknown:
            raise ValueError(f"schedule {schedule}: {min(unknown)}: unknown field")
        wanted, before = _comparable(fields), current.get(schedule)
        declaration = client.topic(name).every(schedule, **_arguments(wanted))
        if before is None:
            changes.append(_Change(f"+ {name}: schedule {schedule}", declaration.declare))
        elif (old := _comparable(before)) != wanted:
            keys = ", ".join(
                f"{key} {old[key]} -> {wanted[key]}" for key in wanted if old[key] != wanted[key]
            )
            changes.append(_Change(f"~ {name}: schedule {schedule}: {keys}", declaration.declare))
    return changes


def _comparable(fields: Mapping[str, Any]) -> dict[str, Any]:
    full = SCHEDULE_DEFAULTS | dict(fields)
    for key in SCHEDULE_DURATIONS:
        if isinstance(full[key], str):
            full[key] = parse_duration(full[key])
    full["body"] = json.dumps(json.loads(full["body"]), ensure_ascii=False, sort_keys=True)
    return full


def _arguments(fields: Mapping[str, Any]) -> dict[str, Any]:
    tz = None if fields["cron"] is None else fields["tz"]
    return {**fields, "body": json.loads(fields["body"]), "tz": tz}
