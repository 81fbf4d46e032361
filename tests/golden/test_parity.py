"""A verb has the same parameters in Python, over HTTP and on the command line, or a reason.

Compared are names and defaults. What differs on purpose stands in tables here, by reason; what
stands there and differs no longer, or in another way, fails too.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, NamedTuple, get_type_hints

import click
import msgspec
import pytest

import rmq
from rmq.cli import cli
from rmq.http_framework import requests
from rmq.kernel.core.settings import TopicSettings
from rmq.server.api import TABLES
from tests.cli.test_help import ALL


class Verb(NamedTuple):
    """The names of a verb: of a method, an operation and a command; None: it is not there."""

    python: str | None
    http: str | None
    command: str | None


VERBS: dict[str, Verb] = {
    "audit": Verb("Admin.audit", "audit", "audit"),
    "audit_trail": Verb("Admin.audit_trail", "list_audit_trail", "audit-trail"),
    "batch": Verb("Admin.batch", "get_batch", "batch show"),
    "batch_cancel": Verb("Admin.batch_cancel", "cancel_batch", "batch cancel"),
    "batch_close": Verb("Admin.batch_close", "close_batch", "batch close"),
    "batches": Verb("Admin.batches", "list_batches", "batch ls"),
    "cancel": Verb("Topic.cancel", "cancel_message", "cancel"),
    "claim": Verb("Admin.claim", "get_claim", "claim"),
    "dead_letter_causes": Verb("Admin.dead_letter_causes", "list_dead_letter_causes", "dlq causes"),
    "dead_letter_edit": Verb("Admin.dead_letter_edit", None, "dlq edit"),
    "dead_letter_groups": Verb("Admin.dead_letter_groups", "list_dead_letter_groups", "dlq groups"),
    "dead_letters": Verb("Admin.dead_letters", "list_dead_letters", "dlq ls"),
    "doctor": Verb("Admin.doctor", "examine", "doctor"),
    "due_counts": Verb("Admin.due_counts", "get_due_counts", None),
    "export": Verb(None, "export_dead_letters", "dlq export"),
    "forget_sink": Verb("Admin.forget_sink", "forget_sink", "sink forget"),
    "get": Verb("Admin.get", "get_message", "get"),
    "group": Verb("Admin.group", "get_group", None),
    "group_pause": Verb("Admin.group_pause", "pause_group", "groups pause"),
    "group_purge": Verb("Admin.group_purge", "purge_group", "groups purge"),
    "group_release": Verb("Admin.group_release", "release_group", "groups release"),
    "group_resume": Verb("Admin.group_resume", "resume_group", "groups resume"),
    "groups": Verb("Admin.groups", "list_groups", "groups ls"),
    "import": Verb(None, "import_dead_letters", "dlq import"),
    "job": Verb("Admin.job", "get_job", "job show"),
    "job_matches": Verb("Admin.job_matches", "count_job_matches", None),
    "job_outcomes": Verb("Admin.job_outcomes", "list_job_outcomes", None),
    "job_pause": Verb("Admin.job_pause", "pause_job", "job pause"),
    "job_resume": Verb("Admin.job_resume", "resume_job", "job resume"),
    "job_start": Verb("Admin.job_start", "start_job", None),
    "job_stop": Verb("Admin.job_stop", "stop_job", "job stop"),
    "jobs": Verb("Admin.jobs", "list_jobs", "job ls"),
    "pending": Verb("Admin.pending", "list_pending", "pending ls"),
    "pending_drop": Verb("Admin.pending_drop", "drop_pending", "pending drop"),
    "pending_send": Verb("Admin.pending_send", "send_pending", "pending send"),
    "peek": Verb("Admin.peek_page", "peek_messages", "peek"),
    "purge": Verb("Admin.purge", "purge", "dlq purge"),
    "queries": Verb("Admin.queries", "list_queries", "query ls"),
    "redrive": Verb("Admin.redrive", "redrive", "dlq redrive"),
    "release_query": Verb("Admin.release_query", "release_query", "query release"),
    "reschedule": Verb("Topic.reschedule", "reschedule_message", "reschedule"),
    "restore": Verb("Admin.restore", "restore", "dlq restore"),
    "rollback": Verb("Admin.rollback", "roll_back", None),
    "result": Verb("Topic.result", "get_result", "result"),
    "samples": Verb("Admin.samples", "get_samples", None),
    "schedule": Verb("Admin.schedule", "get_schedule", "schedule show"),
    "schedule_delete": Verb("Admin.schedule_delete", "delete_schedule", "schedule delete"),
    "schedule_pause": Verb("Admin.schedule_pause", "pause_schedule", "schedule pause"),
    "schedule_resume": Verb("Admin.schedule_resume", "resume_schedule", "schedule resume"),
    "schedule_run": Verb("Admin.schedule_run", "run_schedule", "schedule run"),
    "schedules": Verb("Admin.schedules", "list_schedules", "schedule ls"),
    "send": Verb("Topic.send", "send_message", "send"),
    "set_priority": Verb("Topic.set_priority", "set_message_priority", "priority"),
    "settings": Verb("Admin.settings", "get_topic", "topic show"),
    "sinks": Verb("Admin.sinks", "list_sinks", "sink ls"),
    "signal": Verb("Client.signal", "signal_event", "signal"),
    "stats": Verb("Admin.stats", "get_stats", "stats"),
    "stats_by_slot": Verb("Admin.stats_by_slot", "get_stats_by_slot", None),
    "token_create": Verb("Admin.token_create", None, "token create"),
    "token_revoke": Verb("Admin.token_revoke", None, "token revoke"),
    "tokens": Verb("Admin.tokens", None, "token ls"),
    "topic": Verb("Client.topic", "create_topic", "topic create"),
    "topic_delete": Verb("Admin.topic_delete", "delete_topic", "topic delete"),
    "topic_pause": Verb("Admin.topic_pause", "pause_topic", "topic pause"),
    "topic_resize": Verb("Admin.topic_resize", "resize_topic", "topic resize"),
    "topic_resume": Verb("Admin.topic_resume", "resume_topic", "topic resume"),
    "topic_set": Verb("Admin.topic_set", "set_topic", "topic set"),
    "topics": Verb("Admin.topics", "list_topics", "topic ls"),
    "sweep": Verb("Admin.sweep_offloaded", None, "offloaded sweep"),
    "unclaim": Verb("Admin.unclaim", "delete_claim", None),
    "workers_wanted": Verb("Admin.workers_wanted", "get_workers_wanted", "worker wanted"),
    "workers": Verb("Admin.workers", "list_workers", "worker ls"),
}

# Names that are no verb of the table above.
ALONE = {
    "the first page of peek_page": ("Admin.peek",),
    "a walk through a queue in pieces, of which lists and Spark's batches are made": (
        "Admin.page", "Admin.spans",
    ),
    "done by dlq redrive, job resume and the server": ("Admin.job_run",),
    "lists for the console, of several verbs": (
        "list_messages", "list_leases", "list_consumers", "list_trash",
    ),
    "Admin.audit(forget=True), which changes something": ("forget_missing",),
    "about the server that answers": ("get_info", "list_services"),
    "the consumer is the server, and receipts take the place of deliveries": (
        "receive_messages", "stream_messages", "ack_messages", "nack_messages", "reject_messages",
        "release_messages", "extend_leases",
    ),
    "topic.history.read; over HTTP, a position is a cursor": ("list_acked_messages",),
    "one of a list, or of get": ("rmq dlq show", "rmq worker show"),
    "waiting messages alone, without conditions: Admin.purge of the store": ("rmq purge",),
    "files of its caller": ("rmq archive",),
    "a job, which job_matches and job_start are elsewhere": ("rmq replay",),
    "databases, which the program has and not Redis": (
        "rmq ledger create", "rmq ledger purge", "rmq ledger show", "rmq outbox create",
        "rmq outbox ls", "rmq outbox purge", "rmq outbox resend", "rmq outbox run",
        "rmq outbox status", "rmq outbox void",
    ),
    "processes, and screens that go on": (
        "rmq schedule work", "rmq server", "rmq tail", "rmq top", "rmq worker run",
    ),
    "the command line itself, and its Redis user": (
        "rmq acl generate", "rmq completion", "rmq config show", "rmq explain", "rmq ping",
    ),
    "definitions in a file": ("rmq topic apply", "rmq topic export"),
}  # fmt: skip

# Other words for a parameter, by reason: "face verb word" and the word of the others.
RENAMED = {
    "commands on topics call theirs NAME": {
        "command settings name": "topic",
        "command topic_delete name": "topic",
        "command topic_pause name": "topic",
        "command topic_resize name": "topic",
        "command topic_resume name": "topic",
        "command topic_set name": "topic",
    },
    "a part of a path says whose id it is": {
        "http job job": "id",
        "http job_outcomes job": "id",
        "http job_pause job": "id",
        "http job_resume job": "id",
        "http job_stop job": "id",
    },
    "read aloud: rmq priority TOPIC ID --to 200": {"command set_priority to": "priority"},
    "short, since it is typed": {"command token_create bodies": "sees_bodies"},
}

# Parameters that one face has, in whatever verb: "face parameter default".
OF_ONE_FACE = {
    "python progress left out": "a function; the command draws a bar",
    "python raw False": "bodies as they are stored, for programs that decode them",
    "python scan 100000": "how far a list of groups looks; the others have bounds of their own",
    "python scan 10000": "how far one call looks; the others have bounds of their own",
    "command yes False": "a command asks a person first",
    "http confirm required": "the answer to that question",
}

# All other differences, by reason: "verb parameter", and its default in each face; -: not there.
DIFFERENCES = {
    "a list is pages over HTTP; a command prints as many as fit a screen, or all": {
        "audit_trail limit": "python 100, http 100, command 50",
        "audit_trail until": "python left out, http -, command -",
        "audit_trail cursor": "python -, http left out, command -",
        "batches cursor": "python -, http left out, command -",
        "batches limit": "python -, http 100, command -",
        "dead_letter_causes limit": "python -, http 100, command -",
        "dead_letter_groups limit": "python -, http 100, command -",
        "dead_letters limit": "python 100, http 50, command 20",
        "export cursor": "http left out, command -",
        "jobs cursor": "python -, http left out, command -",
        "jobs limit": "python -, http 100, command -",
        "peek limit": "python 100, http 50, command 10",
        "peek scan": "python -, http -, command 1e+06",
        "topics cursor": "python -, http left out, command left out",
        "topics limit": "python -, http 100, command left out",
    },
    "what a list is narrowed to: a program does that itself": {
        "dead_letters slot": "python -, http left out, command -",
        "topics contains": "python -, http left out, command -",
        "topics pattern": "python -, http -, command *",
        "topics sort": "python -, http -, command name",
        "workers topic": "python -, http -, command left out",
    },
    "a command goes through all topics where none is named": {
        "audit topic": "python required, http required, command left out",
        "schedules topic": "python required, http required, command left out",
        "stats topic": "python required, http required, command left out",
    },
    "a command takes several messages": {
        "cancel id": "python required, http required, command -",
        "cancel ids": "python -, http -, command left out",
        "reschedule id": "python required, http required, command -",
        "reschedule ids": "python -, http -, command required",
        "set_priority id": "python required, http required, command -",
        "set_priority ids": "python -, http -, command required",
    },
    "a flag of the command is another verb elsewhere": {
        "audit forget": "python False, http -, command False",
        "claim delete": "python -, http -, command False",
        "doctor all": "python -, http -, command False",
        "doctor list": "python -, http -, command False",
        "job outcomes": "python -, http -, command 0",
        "stats due": "python -, http -, command False",
        "stats slots": "python -, http -, command False",
    },
    "with a filter, the command is a job, which job_matches and job_start are elsewhere": {
        "cancel filter": "python -, http -, command left out",
        "cancel dry_run": "python -, http -, command False",
        "cancel rate": "python -, http -, command left out",
    },
    "a command works on the job itself, unless it is told not to": {
        "cancel detach": "python -, http -, command False",
        "job_resume detach": "python -, http -, command False",
        "redrive detach": "python -, http -, command False",
    },
    "short for a filter, for people": {
        "dead_letters error": "python -, http -, command left out",
        "dead_letters group": "python -, http -, command left out",
        "dead_letters ids": "python -, http -, command left out",
        "dead_letters older_than": "python -, http -, command left out",
        "dead_letters reason": "python -, http -, command left out",
        "dead_letters type": "python -, http -, command left out",
    },
    "any regular expression: over HTTP only those of a filter, which end in time": {
        "purge error": "python left out, http -, command left out",
        "redrive error": "python left out, http -, command left out",
        "restore error": "python left out, http -, command left out",
    },
    "over HTTP there is no user@host": {
        "job_pause by": "python left out, http HTTP API, command -",
        "job_resume by": "python left out, http HTTP API, command -",
        "job_start by": "python left out, http HTTP API",
        "job_stop by": "python left out, http HTTP API, command -",
        "topic_pause by": "python left out, http HTTP API, command left out",
    },
    "conditions stand beside the rest of the JSON, as in redrive": {
        "job_matches conditions": "python left out, http -",
        "job_matches filter": "python -, http left out",
        "job_matches ids": "python -, http left out",
        "job_matches older_than": "python -, http left out",
        "job_matches reason": "python -, http left out",
        "job_matches since": "python -, http left out",
        "job_matches type": "python -, http left out",
        "job_matches until": "python -, http left out",
        "job_start conditions": "python left out, http -",
        "job_start filter": "python -, http left out",
        "job_start ids": "python -, http left out",
        "job_start older_than": "python -, http left out",
        "job_start reason": "python -, http left out",
        "job_start since": "python -, http left out",
        "job_start type": "python -, http left out",
        "job_start until": "python -, http left out",
    },
    "required of a purge and a cancel, which the operation itself checks": {
        "job_start confirm": "python -, http left out",
    },
    "a header of HTTP: Idempotency-Key, If-Match": {
        "job_start dedup_key": "python left out, http -",
        "topic_set unless_changed": "python left out, http -, command -",
    },
    "commands for waiting messages and for dead letters are two: purge and dlq purge": {
        "purge queue": "python required, http required, command -",
        "purge keep": "python left out, http left out, command 86400",
    },
    "bodies in the forms of JSON, of a file, of a stream": {
        "import letters": "http required, command -",
        "get whole": "python -, http False, command -",
        "send body": "python required, http left out, command left out",
        "send body_base64": "python -, http left out, command -",
        "send codec": "python -, http json, command -",
        "signal codec": "python json, http -, command -",
        "send envelope": "python -, http -, command False",
        "dead_letter_edit body": "python UNCHANGED, command left out",
        "dead_letter_edit file": "python -, command left out",
        "dead_letter_edit raw": "python -, command False",
        "send file": "python -, http -, command left out",
        "send raw": "python -, http -, command False",
        "send results": "python -, http -, command False",
        "signal raw": "python -, http -, command False",
        "topic codec": "python json, http -, command -",
        "topic results": "python left out, http -, command -",
        "topic step_bytes": "python 65536, http -, command -",
    },
    "open() is a call of its own in Python; HTTP has an operation that creates topics": {
        "send create": "python -, http -, command False",
    },
    "the command leaves it to the library, so that an envelope may say it": {
        "send merge": "python first, http first, command left out",
    },
    "HTTP takes what the topic says, and waits 3 s for room": {
        "send durability": "python left out, http -, command left out",
        "send timeout": "python left out, http -, command left out",
    },
    "an object of Python; elsewhere the setting of the topic": {
        "send retry": "python left out, http -, command -",
    },
    "HTTP does not wait; a flag says the opposite of its default": {
        "topic_resize no_wait": "python -, http -, command False",
        "topic_resize wait": "python True, http -, command -",
    },
    "the steps are those of the console": {
        "due_counts steps": "python 0 60 300 900 3600 21600 86400 604800, http -",
    },
    "in Python a method of the handle": {
        "result wait": "python -, http 0, command left out",
    },
    "one of the list, for sink forget": {
        "sinks query": "python left out, http -, command -",
    },
    "who types it decides what the token may do": {
        "token_create role": "python viewer, command required",
    },
}


# --- the parameters of each ----------------------------------------------------------------------

OPERATIONS = {each.name: each for table in TABLES for each in table.operations}
COMMANDS = [" ".join(words) for words in ALL]
REQUIRED, LEFT_OUT = "required", "left out"


def default_text(value: Any) -> str:
    """A default, in one way for numbers and durations of all kinds."""
    if value is None or value is msgspec.UNSET:
        return LEFT_OUT
    if isinstance(value, tuple):
        return " ".join(map(default_text, value)) or LEFT_OUT
    if isinstance(value, timedelta):
        value = value.total_seconds()
    return f"{value:g}" if type(value) in (int, float) else str(value)


def of_method(name: str) -> Iterator[tuple[str, str]]:
    """The parameters of a method, and their defaults; a method of Topic has the topic."""
    owner, _, method = name.partition(".")
    if owner == "Topic":
        yield "topic", REQUIRED
    for each in inspect.signature(getattr(getattr(rmq, owner), method)).parameters.values():
        if each.annotation == "Unpack[TopicSettings]":
            yield from dict.fromkeys(get_type_hints(TopicSettings), LEFT_OUT).items()
        elif each.name != "self" and each.annotation != "Never":
            yield each.name, REQUIRED if each.default is each.empty else default_text(each.default)


def of_operation(name: str) -> Iterator[tuple[str, str]]:
    """The parts of the path, the query and the body of an operation, and their defaults."""
    for part, kind in OPERATIONS[name].types.items():
        if part != "return":
            yield from of_struct(kind)


def of_struct(kind: type) -> Iterator[tuple[str, str]]:
    for each in msgspec.structs.fields(kind):
        if isinstance(each.type, type) and issubclass(each.type, requests.Request):
            yield from of_struct(each.type)
        else:
            yield each.name, REQUIRED if each.required else default_text(each.default)


def of_command(words: str) -> Iterator[tuple[str, str]]:
    """The arguments and options of a command, and their defaults as it takes them."""
    command: Any = cli
    for word in words.split():
        command = command.get_command(click.Context(command), word)
    context = click.Context(command)
    for each in command.params:
        if each.expose_value:  # others are common to all, or set a parameter of the function
            default = each.get_default(context)
            is_given = isinstance(default, str | int | float)
            text = default_text(each.type_cast_value(context, default)) if is_given else LEFT_OUT
            yield as_typed(each), REQUIRED if each.required else text
    names = {each.name for each in command.params}
    taken = inspect.signature(command.callback, follow_wrapped=False)  # as click calls it
    for each in taken.parameters.values():
        if each.name not in names and each.kind is not each.VAR_KEYWORD:
            yield each.name, default_text(each.default)


def as_typed(parameter: click.Parameter) -> str:
    """The name of an argument or option as a person types it; ids for an id that repeats."""
    if isinstance(parameter, click.Argument):
        name, repeats = parameter.human_readable_name.strip("[]."), parameter.nargs == -1
    else:
        name, repeats = max(parameter.opts, key=len).lstrip("-"), parameter.multiple
    name = name.lower().replace("-", "_")
    return {"id": "ids", "header": "headers"}.get(name, name) if repeats else name


PARAMETERS = {"python": of_method, "http": of_operation, "command": of_command}


def renamed() -> dict[str, str]:
    return {key: word for words in RENAMED.values() for key, word in words.items()}


def differences(met: set[str] | None = None) -> dict[str, str]:
    """Return the differences, as in DIFFERENCES.

    `met`: gets the entries of the other tables that apply.
    """
    met, words, found = set() if met is None else met, renamed(), {}
    for verb, names in VERBS.items():
        faces: dict[str, Mapping[str, str]] = {}
        for face, name in names._asdict().items():
            if name is not None:
                given = dict(PARAMETERS[face](name))
                met |= {f"{face} {verb} {each}" for each in given}
                given = {words.get(f"{face} {verb} {each}", each): given[each] for each in given}
                met |= {f"{face} {each} {default}" for each, default in given.items()}
                faces[face] = {
                    each: default
                    for each, default in given.items()
                    if f"{face} {each} {default}" not in OF_ONE_FACE
                }
        for parameter in {each: None for given in faces.values() for each in given}:
            defaults = {face: given.get(parameter, "-") for face, given in faces.items()}
            if len(set(defaults.values())) > 1:
                shown = ", ".join(f"{face} {default}" for face, default in defaults.items())
                found[f"{verb} {parameter}"] = shown
    return found


def untold() -> dict[str, str]:
    """Return the differences that are not in the table in this way."""
    told = {key: shown for each in DIFFERENCES.values() for key, shown in each.items()}
    return {key: shown for key, shown in differences().items() if told.get(key) != shown}


def stale() -> list[str]:
    """Return the entries of the tables that differ no longer."""
    met: set[str] = set()
    found = differences(met)
    told = [key for each in DIFFERENCES.values() for key in each if key not in found]
    return told + [key for key in (*renamed(), *OF_ONE_FACE) if key not in met]


def names() -> tuple[set[str], set[str]]:
    """All methods of Admin, operations and commands; and those that the tables have."""
    methods = [name for name, _ in inspect.getmembers(rmq.Admin, inspect.isfunction)]
    there = {f"Admin.{name}" for name in methods if not name.startswith("_")}
    there |= {*OPERATIONS, *(f"rmq {words}" for words in COMMANDS)}
    told = {name for each in ALONE.values() for name in each}
    for verb in VERBS.values():
        told |= {verb.python, verb.http, verb.command and f"rmq {verb.command}"} - {None}
    return there, {name for name in told if not name.startswith(("Topic.", "Client."))}


# --- claims --------------------------------------------------------------------------------------


def test_parameters_and_defaults_differ_only_as_the_table_says() -> None:
    assert untold() == {}, "use the same name and default, or write the difference and its reason"


def test_what_the_tables_say_is_so() -> None:
    assert stale() == []


def test_every_method_of_admin_operation_and_command_is_compared_or_alone() -> None:
    there, told = names()

    assert sorted(there - told) == [], "write it into the table of verbs, or into that of others"
    assert sorted(told - there) == []


# --- the controls --------------------------------------------------------------------------------


def purge(self: rmq.Admin, topic: str, queue: str, keep: float = 3600) -> int:
    return 0


class Redrive(requests.DeadLetterConditions):
    """As of the operation, but for `to`, which has another name."""

    target: str | None = None
    fresh: bool = False
    rate: float | None = None
    dry_run: bool = False


def test_another_default_and_a_parameter_that_is_gone_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = differences()["purge keep"]
    monkeypatch.setattr(rmq.Admin, "purge", purge)
    found = untold()

    assert before == "python left out, http left out, command 86400"
    assert found["purge keep"] == "python 3600, http left out, command 86400"
    assert found["purge dry_run"] == "python -, http False, command False"


def test_another_name_is_found_over_http(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPERATIONS["redrive"].types, "body", Redrive)

    assert untold() == {
        "redrive to": "python left out, http -, command left out",
        "redrive target": "python -, http left out, command -",
    }


def test_another_name_is_found_on_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    command = cli.get_command(click.Context(cli), "peek")
    assert command is not None
    (queue,) = (each for each in command.params if each.name == "queue")
    monkeypatch.setattr(queue, "opts", ["--place"])

    assert untold() == {
        "peek queue": "python store, http store, command -",
        "peek place": "python -, http -, command store",
    }


def test_what_differs_no_longer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DIFFERENCES, "why", {"redrive rate": "python 5, http left out"})
    monkeypatch.setitem(RENAMED, "why", {"http redrive target": "to"})
    monkeypatch.setitem(OF_ONE_FACE, "python progress True", "why")

    assert stale() == ["redrive rate", "http redrive target", "python progress True"]


def test_a_verb_that_the_tables_lack_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rmq.Admin, "topic_copy", purge, raising=False)
    monkeypatch.delitem(VERBS, "redrive")
    there, told = names()

    assert sorted(there - told) == [
        "Admin.redrive",
        "Admin.topic_copy",
        "redrive",
        "rmq dlq redrive",
    ]
