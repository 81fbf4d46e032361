"""The glossary is short, and the names of RMQ use its words."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import pathlib
import re
from collections.abc import Container, Iterable, Mapping

import click
import pytest

import rmq
from rmq.cli import cli
from rmq.http_framework import requests
from rmq.kernel.core import metrics
from rmq.kernel.transport.lua import script_loader
from rmq.server import api
from tools.blocking import HEAD

ROOT = pathlib.Path(__file__).resolve().parents[2]
GENERATED = HEAD.partition("{")[0]
ROW = re.compile(r"^\| \*\*(.+?)\*\* \| (.+) \|(.*) \|$", re.MULTILINE)
ROWS = ROW.findall((ROOT / "docs/glossary.md").read_text())
TERMS = {term: meaning for term, meaning, _ in ROWS}

# Words that public names use in their usual meaning: of everyday English, of Redis, or of queues
# and servers in general. A word with a meaning of RMQ's own belongs in docs/glossary.md instead.
PLAIN_ENGLISH = {
    # programming
    "admin", "async", "client", "error", "errors", "id", "mismatch", "outcome", "page",
    "script", "settings", "span", "unknown", "value", "invalid", "failure",
    "configuration", "completion", "compressed", "content", "explain", "top", "rmq",
    "total", "seconds", "build", "info",
    "sent", "handled", "received", "held", "format", "encrypted", "offloaded",
    # errors and states
    "already", "cancelled", "as", "completed",
    "unavailable", "storage", "decode", "encode", "embedded", "empty", "found", "not",
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
    "next", "sweep", "then", "tidy", "begin", "end", "push", "keep", "again", "finish", "drop",
    "unclaim", "inspect", "locate", "count", "counts",
    # the doctor
    "doctor", "finding", "config", "cause", "edit",
    # definitions as a file
    "apply",
    # batches
    "add", "member",
    # events that messages wait for
    "signal", "deliver", "register", "waiters", "checks", "suspended", "for",
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


# --- words that are not used for a term ----------------------------------------------------------


def words_not_used() -> dict[str, str]:
    """Return the stem of each word of the column "not", and the term."""
    return {stem(word): term for term, _, words in ROWS for word in words_of(words)}


# Names that have such a word all the same, by the reason. A name is "file:name", or a file.
EXCEPTIONS = {
    # words of other systems
    "a stream of bytes, or of lines of JSON": """
        cli_framework/app.py:_open_closed_streams features/messages/cli/send.py:Stream
        features/messages/cli/send.py:_send_stream http_framework/operation.py:stream_response
        features/http_consumers/consumers.py:Stream features/http_consumers/consumers.py:stream
        features/http_consumers/http.py:Stream features/http_consumers/http.py:stream_messages
        server/console.py:_has_stream_for server/console.py:_stream
        server/protocol.py:_asks_for_stream""",
    "a task of asyncio": """
        kernel/transport/flow/coalescing.py:CoalescingTasks
        kernel/transport/flow/coalescing.py:WaitingTask sql/ledger/renewal.py:TaskRenewal
        worker/process_scope.py:TaskScope worker/running/event_loop.py:GuardedTask
        worker/running/executors.py:TaskExecutor""",
    "a lock of a row in a database": """
        sql/outbox/relay_queries.py:locks sql/outbox/resend_queries.py:lock""",
    "a method that click calls": "cli/server.py:callback",
    "the callback of a batch: a message, which Promises and Celery's chords call so, too": """
        client/client.py:_callback_of features/batches/flows.py:_encode_callback""",
    "a ring of samples, the oldest of which is overwritten": """
        kernel/core/history.py:Ring kernel/core/history.py:rings_for""",
    "a value of a list of Redis, which has no lease": "client/shared_data.py:pop",
    # the ordinary meaning: not a receive
    "a thing is taken, and given back": "server/rates.py:take",
    "a part of the bytes that came is taken": "server/protocol.py:take_head",
    "rows of an outbox are taken by one relay": """
        sql/outbox/relay_queries.py:take sql/outbox/resend_queries.py:take_to_report""",
    "the runner of a job of dead letters takes the job: script job_take": """
        features/dead_letters/jobs/run.py:_Runner features/dead_letters/jobs/run.py:runner_name
        features/dead_letters/jobs/run.py:take features/dead_letters/jobs/scripts.py:JobTaken
        features/dead_letters/jobs/scripts.py:job_take""",
    # names that users and scripts know; another word would be another interface
    "a query takes and holds messages: Query.take, rmq.HeldQuery, script query_take": """
        features/spark/flows.py:_take features/spark/flows.py:_take_ready
        features/spark/flows.py:take features/spark/held.py features/spark/held.py:HeldQuery
        features/spark/held.py:_held features/spark/query.py:Held features/spark/query.py:take
        features/spark/read_flows.py:HeldPart features/spark/scripts.py:_log_of_take
        features/spark/scripts.py:query_take kernel/core/message.py:held_by_query
        kernel/topic/paging.py:held_by_query""",
    "a redrive to another topic holds its dead letters: script redrive_hold": """
        features/dead_letters/scripts.py:HeldLetter features/dead_letters/scripts.py:HoldReply
        features/dead_letters/scripts.py:redrive_hold""",
    "held is a count: messages that a pause, a limit or a group holds back": """
        cli_framework/message.py:held_text features/topic_admin/cli/listing.py:note_held
        kernel/core/message.py:held""",
    "the scores of a group are called its lane in lua/lib/groups/lanes.lua": """
        kernel/core/score.py:lane_of kernel/core/score.py:lane_range""",
}  # fmt: skip


ADAPTERS = ("integrations", "django")  # they use the words of the framework, such as task


def names_in(files: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the names of files, classes and functions: "file:name", and the name alone."""
    found = {}
    for file, text in files:
        found[file] = pathlib.PurePath(file).stem
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found[f"{file}:{node.name}"] = node.name
    return found


def names_with(words: Container[str], names: Mapping[str, str]) -> set[str]:
    """Return the names that have one of these stems."""
    return {where for where, name in names.items() if any(stem(w) in words for w in words_of(name))}


@pytest.fixture(scope="module")
def own_names() -> dict[str, str]:
    texts = [(path, path.read_text()) for path in sorted((ROOT / "rmq").rglob("*.py"))]
    return names_in(
        (path.relative_to(ROOT / "rmq").as_posix(), text)
        for path, text in texts
        if not text.startswith(GENERATED) and path.parts[len(ROOT.parts) + 1] not in ADAPTERS
    )


def test_no_file_class_or_function_has_a_word_that_is_not_used_for_a_term(
    own_names: dict[str, str],
) -> None:
    allowed = {name for names in EXCEPTIONS.values() for name in names.split()}

    assert len(own_names) > 5000
    found = names_with(words_not_used(), own_names)
    assert sorted(found - allowed) == [], 'the column "not" of docs/glossary.md names the term'
    assert sorted(allowed - found) == [], "these are exceptions no more"


def test_a_word_that_is_not_used_is_found_in_each_kind_of_name() -> None:
    text = "class TakeAway:\n    def held_back(self): ...\nasync def _pops(): ...\ntaken = 1\n"
    names = names_in([("a/lanes.py", text), ("a/lease.py", "def receive(): ...")])

    assert names_with(words_not_used(), names) == {
        "a/lanes.py", "a/lanes.py:TakeAway", "a/lanes.py:held_back", "a/lanes.py:_pops",
    }  # fmt: skip


def test_a_word_that_is_not_used_for_a_term_is_no_term() -> None:
    assert len(words_not_used()) > 50
    assert sorted(set(words_not_used()) & glossary_stems()) == []


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
