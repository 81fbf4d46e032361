"""HTTP and the command line show a value with the names that Python has, or there is a reason."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

import rmq
from rmq.cli import cli
from rmq.features.workers import flows
from rmq.features.workers.status import HandlerStatus, write_status
from rmq.kernel.transport.flow.steps import RawCommand
from tests.cli.conftest import OWN_STDERR
from tests.server.running import ask, serving
from tests.servers import Server as Redis


class Places(NamedTuple):
    """Where a value is shown.

    Attributes:
        kind: its class; None: it has none, as a count.
        http: a request: a path, or a method, a path and a body.
        answered: what of the answer, as jobs.0; empty: all of it.
        command: its words.
        printed: what of its JSON.
    """

    kind: type | None
    http: str
    answered: str
    command: str
    printed: str


SHOWN = {
    "audit": Places(
        rmq.AuditResult, "/topics/lost/audit?older_than=0", "", "audit lost --older-than 0", ""
    ),
    "audit_trail": Places(rmq.AuditLine, "/audit-trail", "lines.0", "audit-trail", "0"),
    "batch": Places(rmq.BatchState, "/batches/import-7", "", "batch show import-7", ""),
    "batch_cancel": Places(
        None, 'POST /batches/import-8/cancel {{"confirm":"import-8"}}', "",
        "batch cancel import-8 --yes", "",
    ),
    "batch_close": Places(
        None, "POST /batches/import-8/close {{}}", "", "batch close import-8", ""
    ),
    "batches": Places(rmq.BatchState, "/batches", "batches.0", "batch ls", "0"),
    "cancel": Places(
        None, "POST /topics/other/messages/{other}/cancel {{}}", "", "cancel other {other}", "0"
    ),
    "claim": Places(rmq.ClaimStatus, "/topics/orders/claims?key=k", "", "claim orders k", ""),
    "dead_letter_causes": Places(
        rmq.DeadLetterGroup, "/dead-letters/causes", "groups.0", "dlq causes", "0"
    ),
    "dead_letter_groups": Places(
        rmq.DeadLetterGroup, "/topics/orders/dead-letters/groups", "groups.0",
        "dlq groups orders", "0",
    ),
    "dead_letters": Places(
        rmq.Message, "/topics/orders/dead-letters", "messages.0", "dlq ls orders", "0"
    ),
    "doctor": Places(
        rmq.Finding, "/doctor?only=persistence", "findings.0",
        "doctor --only persistence", "findings.0",
    ),
    "due_counts": Places(
        rmq.DueCount, "/topics/orders/stats/due", "counts.0", "stats orders --due", "due.0"
    ),
    "export": Places(
        rmq.Message, "/topics/orders/dead-letters/export", "0", "dlq export orders", "0"
    ),
    "get": Places(rmq.Message, "/topics/orders/messages/{dead}", "", "get orders {dead}", ""),
    "groups": Places(
        rmq.GroupState, "/topics/grouped/groups", "groups.0", "groups ls grouped", "0"
    ),
    "job": Places(rmq.Job, "/jobs/{job}", "", "job show {job}", ""),
    "job_outcomes": Places(
        rmq.JobOutcome, "/jobs/{job}/outcomes", "outcomes.0",
        "job show {job} --outcomes 5", "outcomes.0",
    ),
    "peek": Places(rmq.Message, "/topics/orders/peek", "messages.0", "peek orders", "0"),
    "purge": Places(
        None, 'POST /topics/orders/purge {{"queue":"dead","confirm":"orders","dry_run":true}}', "",
        "dlq purge orders --dry-run", "",
    ),
    "queries": Places(
        rmq.HeldQuery, "/topics/orders/queries", "queries.0", "query ls orders", "0"
    ),
    "redrive": Places(
        rmq.RedriveResult, "POST /topics/orders/dead-letters/redrive {{}}", "",
        "dlq redrive orders --yes", "",
    ),
    "restore": Places(
        None, 'POST /topics/orders/trash/restore {{"dry_run":true}}', "",
        "dlq restore orders --dry-run", "",
    ),
    "result": Places(
        rmq.ResultState, "/topics/kept/messages/{kept}/result", "", "result kept {kept}", ""
    ),
    "schedule": Places(
        rmq.ScheduleState, "/topics/orders/schedules/nightly", "",
        "schedule show orders nightly", "",
    ),
    "send": Places(
        rmq.SendResult, 'POST /topics/other/messages {{"body":1}}', "", "send other 1", ""
    ),
    "settings": Places(rmq.Settings, "/topics/orders", "", "topic show orders", ""),
    "sinks": Places(rmq.Sink, "/topics/orders/sinks", "sinks.0", "sink ls orders", "0"),
    "stats": Places(None, "/topics/orders/stats", "counts", "stats orders", ""),
    "topic_delete": Places(
        rmq.DeleteResult, "DELETE /topics/orders?confirm=orders&dry_run=true", "",
        "topic delete orders --dry-run", "",
    ),
    "topic_pause": Places(
        rmq.Pause, "POST /topics/orders/pause {{}}", "", "topic pause orders", "paused"
    ),
    "topic_resize": Places(
        rmq.ResizeResult, 'POST /topics/other/resize {{"slots":2,"dry_run":true}}', "",
        "topic resize other 2 --dry-run", "",
    ),
    "workers_wanted": Places(
        rmq.WorkersWanted, "/topics/orders/workers-wanted", "", "worker wanted orders", ""
    ),
    "workers": Places(rmq.WorkerStatus, "/workers", "workers.0", "worker ls", "0"),
}  # fmt: skip

# What differs, by reason: "verb field", and who has it.
DIFFERENCES = {
    "milliseconds in Python: at_ms, keep_ms": {
        "audit_trail at": "http command",
        "job keep": "http command",
    },
    "the command repeats what it was asked": {
        "batch_cancel batch": "command",
        "batch_close batch": "command",
        "cancel id": "command",
        "claim consumer": "command",
        "claim deleted": "command",
        "claim key": "command",
        "purge topic": "command",
        "redrive topic": "command",
        "restore topic": "command",
        "stats topic": "command",
        "topic_delete dry_run": "http command",
        "topic_delete topic": "command",
        "topic_resize dry_run": "http command",
        "topic_resize topic": "command",
        "workers_wanted topic": "http command",
    },
    "a command counts what matches before it asks": {
        "purge count": "http",
        "purge dry_run": "command",
        "purge matched": "command",
        "redrive dry_run": "command",
        "restore count": "http",
        "restore dry_run": "command",
        "restore matched": "command",
    },
    "a command that redrives runs a job": {"redrive job": "command", "redrive to": "command"},
    "of a dry run: for the pages of the console": {
        "purge sample": "http",
        "redrive sample": "http",
        "restore sample": "http",
    },
    "computed by a function in Python; a command has it where --columns can name it": {
        "dead_letters failure.fingerprint": "http",
        "dead_letters fingerprint": "command",
        "export failure.fingerprint": "http",
        "export fingerprint": "command",
        "get failure.fingerprint": "http",
    },
    "all attempts and steps are long: a command shows them of one message": {
        "dead_letters attempts": "python http",
        "peek attempts": "python http",
        "dead_letters steps": "python http",
        "dead_letters waits_for": "python http",
        "peek steps": "python http",
        "peek waits_for": "python http",
    },
    "a value in the form in which HTTP shows bodies": {
        "result outcome.value.is_truncated": "http",
        "result outcome.value.kind": "http",
        "result outcome.value.size": "http",
        "result outcome.value.text": "http",
    },
    "the cursor of a list is beside it, on the command line in each record": {
        "dead_letters cursor": "command",
        "peek cursor": "command",
    },
    "over HTTP an export has what an import needs, and a cursor, since it may break off": {
        "export attempts": "python command",
        "export body": "python command",
        "export body_base64": "http command",
        "export codec": "http command",
        "export cursor": "http",
        "export deadline": "python command",
        "export due": "python command",
        "export expires": "python command",
        "export held_by_query": "python command",
        "export merge_key": "python command",
        "export offset": "python command",
        "export queue": "python command",
        "export unreadable": "python command",
    },
    "of the engine: HTTP shows what a score means": {
        "dead_letters score": "python command",
        "get score": "python command",
        "peek score": "python command",
    },
    "durations of a schedule have their unit in the name on the command line": {
        "schedule every": "python http",
        "schedule every_s": "command",
        "schedule expires": "python http",
        "schedule expires_s": "command",
        "schedule jitter": "python http",
        "schedule jitter_s": "command",
    },
    "a topic is its settings in Python, and more to look at elsewhere": {
        "settings name": "http",
        "settings resizing": "http command",
        "settings settings": "http command",
        "settings stats": "command",
        "settings topic": "command",
    },
    "the sum of other counts": {
        "stats waiting": "command",
        "topic_delete messages": "python command",
    },
    "as a run names its handler": {
        "workers handlers.handler": "command",
        "workers handlers.name": "http",
    },
}


# --- a topic of which there is everything to show ------------------------------------------------


def make_topics(url: str, prefix: str) -> dict[str, str]:
    """Make topics with all kinds of values; return the ids that requests name."""
    with rmq.Client(url, prefix=prefix, interceptors=[rmq.Audit()]) as producer:
        producer.topic("lost").send(1)
    with rmq.Client(url, prefix=prefix) as client:
        client._transport.run(_lose(f"{prefix}:{{lost_0}}"))
        topic = client.topic(
            "orders", max_retries=0, retry="immediate", groups=rmq.Groups(False, 10)
        )
        admin = client.admin
        sent = [
            topic.send({"n": n}, headers={"h": "1"}, type="t", group="g", share_key="s").id
            for n in range(7)
        ]
        with topic.consumer() as consumer:
            for delivery in consumer.receive(6):
                delivery.nack(error=ValueError("why"))
            rmq.Claims().first(consumer.receive(1), key=lambda body: "k")[0].ack()
        admin.purge("orders", "dead", ids=[sent[0]])
        job = admin.job_start("orders", conditions={"ids": [str(sent[1])]})
        admin.job_run(job.id)
        topic.query("a" * 32, "driver").take({})
        client.topic("batched").open()
        topic.send({"n": 7})
        stage = topic.stage()
        stage.push([rmq.Outgoing(8)])
        topic.publish([stage.staged], query="q", batch=0)
        topic.every("nightly", every=3600, body={"n": 1}).declare()
        client.topic("grouped", groups=rmq.Groups()).send(1, group="g")
        kept = client.topic("kept").send(1, keep_result=60)
        with client.topic("kept").consumer() as consumer:
            consumer.receive()[0].ack(result=2)
        for name in ("import-8", "import-7"):
            batch = client.batch(name, then=("kept", rmq.Outgoing("report")))
            batch.open()
            batch.send("batched", 1)
        other = client.topic("other").send(1)
        client._transport.run(flows.report(prefix, "0123abcd", _status, 60_000))
        return {"dead": str(sent[2]), "job": job.id, "other": str(other.id), "kept": str(kept.id)}


def _lose(slot: str) -> Iterator[Any]:
    yield RawCommand("lose", "UNLINK", f"{slot}:store", f"{slot}:records")


def _status(now_ms: int) -> str:
    handler = HandlerStatus("orders", "handle", 2, 1, 1, {"received": 3, "nack": 1})
    return write_status(
        at_ms=now_ms, host="web1", pid=7, process=None, version="0", age_ms=1000,
        keep_ms=60_000, handlers=[handler], runs=[("0" * 26, 0, 500)],
    )  # fmt: skip


@pytest.fixture(scope="module")
def shown(server: Redis) -> dict[str, tuple[Any, Any]]:
    """Of each value, what HTTP and the command line show."""
    prefix = "same-fields"
    ids = make_topics(server.url, prefix)
    options = ["--json", "--url", server.url, "--prefix", prefix]
    found = {}
    with serving(server.url, prefix) as running:
        for verb, places in SHOWN.items():
            words = shlex.split(places.command.format(**ids))
            done = CliRunner(**OWN_STDERR).invoke(cli, [*words, *options])
            method, path, *body = _request(places.http.format(**ids))
            data = json.loads(body[0]) if body else None
            answer = ask(f"{running.url}/api/v1{path}", method, data)
            assert answer.status in (200, 201), (verb, answer.body)
            found[verb] = part(answer.body, places.answered), part(done.stdout, places.printed)
    return found


def _request(text: str) -> list[str]:
    return ["GET", text] if text.startswith("/") else text.split(" ", 2)


def part(value: Any, path: str) -> Any:
    """A part of an answer, or of what a command printed; of NDJSON of its first record."""
    if isinstance(value, str):
        value = json.loads(value.splitlines()[0])
    for word in path.split(".") if path else ():
        if isinstance(value, list):
            value = value[int(word)]
        elif word != "0":  # else it is that of NDJSON
            value = value[word]
    return value


# --- the comparison ------------------------------------------------------------------------------


def names(value: Any, before: str = "") -> Iterator[str]:
    """The names of fields, with those inside; of bodies, which HTTP describes, none."""
    for each in value if isinstance(value, list) else ():
        yield from names(each, before)
    for name, inner in value.items() if isinstance(value, dict) else ():
        yield before + name
        if name != "body":
            yield from names(inner, f"{before}{name}.")


def differences(shown: dict[str, tuple[Any, Any]]) -> dict[str, str]:
    """Which fields one of HTTP, command line and Python has, and others have not."""
    found = {}
    for verb, (answered, printed) in shown.items():
        kind = SHOWN[verb].kind
        http, command = set(names(answered)), set(names(printed))
        for name in sorted(http | command):
            outer = name.rpartition(".")[0]
            if outer and outer not in http & command:
                continue  # the difference is that one
            has = {"http": name in http, "command": name in command}
            if kind is not None and not outer:
                has = {"python": hasattr(kind, name)} | has
            if not all(has.values()):
                found[f"{verb} {name}"] = " ".join(face for face in has if has[face])
    return found


TOLD = {key: faces for each in DIFFERENCES.values() for key, faces in each.items()}


def test_fields_differ_only_as_the_table_says(shown: dict[str, tuple[Any, Any]]) -> None:
    found = differences(shown)

    assert {key: found[key] for key in found if TOLD.get(key) != found[key]} == {}, (
        "use the same name, or write the difference and its reason"
    )
    assert [key for key in TOLD if key not in found] == [], "these differ no longer"


def test_a_field_that_is_missing_or_has_another_name_is_found(
    shown: dict[str, tuple[Any, Any]],
) -> None:
    """The control."""
    job, printed = shown["job"]
    other = {("runs" if name == "runner" else name): job[name] for name in job if name != "gone"}
    audit, audit_printed = shown["audit"]
    lost = audit | {"lost": [{**audit["lost"][0], "count": 1}]}

    assert differences({"job": (other, printed), "audit": (lost, audit_printed)}) == {
        "audit lost.count": "http",
        "job gone": "python command",
        "job keep": "http command",
        "job runner": "python command",
        "job runs": "http",
    }
