"""Every way in which a message leaves without a trace elsewhere, with its number accounted for.

Each is also run with that one account left out: then the audit must report what is not lost. So the
tests above it would notice.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import rmq
from rmq.kernel.producer import report
from rmq.kernel.transport.flow.steps import Command
from rmq.kernel.transport.lua import script_loader
from tests.integration.auditing import adds_up, lose, lost, producer
from tests.property.mutants import loader

Scene = Callable[[Any, Any, Any], None]  # a client that numbers, its topic, a topic of another


class Reason(NamedTuple):
    scene: Scene
    settings: dict[str, Any]
    mutant: list[tuple[str, str, str]]  # of a script; [] where the producer accounts for it
    least: int = 1  # reported where the account is left out


def _take(topic: Any, count: int, **mode: Any) -> list[Any]:
    with topic.consumer(**mode) as consumer:
        found: list[Any] = []
        until = time.monotonic() + 60
        while len(found) < count and time.monotonic() < until:
            found += consumer.receive(count - len(found), wait=0.5)
        if not mode:
            consumer.ack(found)
        return found


def acked(client: Any, topic: Any, other: Any) -> None:
    topic.send_many([rmq.Outgoing(n) for n in range(20)])
    assert len(_take(other, 17)) == 17


def acked_by_receipt(client: Any, topic: Any, other: Any) -> None:
    topic.send_many([rmq.Outgoing(n) for n in range(3)])
    with other.consumer() as consumer:
        receipts = [str(one.receipt) for one in consumer.receive(2)]
        assert consumer.ack_receipts(receipts) == []


def at_most_once(client: Any, topic: Any, other: Any) -> None:
    topic.send_many([rmq.Outgoing(n) for n in range(20)])
    assert len(_take(other, 11, mode="at_most_once")) == 11


def cancelled(client: Any, topic: Any, other: Any) -> None:
    ids = [topic.send(n, delay=60).id for n in range(4)]
    assert other.cancel(ids[1]) == "cancelled"
    topic.send("window", merge_key="k", time_range=60)
    window = topic.send("window", merge_key="k", time_range=60)
    assert other.cancel(window.into) == "cancelled"


def purged(client: Any, topic: Any, other: Any) -> None:
    topic.send_many([rmq.Outgoing(n, priority=20 + n) for n in range(30)])
    assert client.admin.purge(topic.name, "store") == 30


def purged_dead(client: Any, topic: Any, other: Any) -> None:
    topic.send_many([rmq.Outgoing(n) for n in range(6)])
    with other.consumer() as consumer:
        for one in consumer.receive(5):
            one.reject("why")
    assert client.admin.purge(topic.name, "dead", error="why", keep=0) == 5


def expired(client: Any, topic: Any, other: Any) -> None:
    topic.send("a")
    time.sleep(0.1)
    topic.send("b", expires=60)
    assert [one.body for one in _take(other, 1)] == ["b"]


def dropped(client: Any, topic: Any, other: Any) -> None:
    for n in range(9):
        topic.send(n, priority=30 + n)
    with pytest.raises(rmq.QueueFull):
        topic.send("least", priority=17)


def retained(client: Any, topic: Any, other: Any) -> None:
    for n in range(3):
        topic.send(n)
        with other.consumer() as consumer:
            (one,) = consumer.receive(wait=2)
            one.nack(error="why")
        if n == 1:
            time.sleep(1.05)
    assert client.admin.stats(topic.name)["dead_dropped"] == 2


def merged(client: Any, topic: Any, other: Any) -> None:
    for merge in ("first", "last", "collect"):
        for n in range(5):
            topic.send(n, merge_key=merge, time_range=0.2, merge=merge)
    assert len(_take(other, 3)) == 3


def repeated(client: Any, topic: Any, other: Any) -> None:
    id = topic.new_id()
    assert [topic.send("a", id=id).status for _ in range(3)] == ["stored"] + ["duplicate"] * 2
    assert len(_take(other, 1)) == 1
    assert topic.send("a", id=id).status == "duplicate"


def deduplicated(client: Any, topic: Any, other: Any) -> None:
    keys = ["a", "b", "a", "a"]
    found = topic.send_many([rmq.Outgoing(n, dedup_key=key) for n, key in enumerate(keys)])
    assert [one.status for one in found] == ["stored"] * 2 + ["duplicate"] * 2
    assert len(_take(other, 2)) == 2
    assert topic.send("c", dedup_key="b").status == "duplicate"


def refused(client: Any, topic: Any, other: Any) -> None:
    topic.send_many([rmq.Outgoing(n) for n in range(3)])
    for bad in ([rmq.Outgoing("a"), rmq.Outgoing(object())], [rmq.Outgoing("a", priority=3)]):
        with pytest.raises((rmq.InvalidValue, rmq.EncodeError)):
            topic.send_many(bad)
    with contextlib.suppress(rmq.QueueFull):
        topic.send_many([rmq.Outgoing(n) for n in range(3)])
    assert len(_take(other, 3)) == 3
    topic.send("last")


def _leave_out(script: str, call: str) -> list[tuple[str, str, str]]:
    return [(script, call, "")]


_ACK = _leave_out("ack", "account_for('seen', audit_numbers, now)")
_DROP = "account_for('accounted', read_numbers(ids, page), now)"
REASONS: dict[str, Reason] = {
    "acked": Reason(acked, {}, _ACK, 17),
    "acked by receipt": Reason(acked_by_receipt, {}, _ACK, 2),
    "settled at most once": Reason(at_most_once, {}, _ACK, 11),
    "cancelled": Reason(
        cancelled,
        {},
        _leave_out("cancel", _DROP),
        2,
    ),
    "purged": Reason(purged, {}, _leave_out("purge", _DROP), 30),
    "purged when dead": Reason(purged_dead, {}, _leave_out("trash", _DROP), 5),
    "expired": Reason(
        expired,
        {"expires": 0.05, "on_expire": "drop"},
        _leave_out(
            "prepare",
            "account_for('accounted', add_numbers(gone.records, number_of, {}), now)",
        ),
    ),
    "dropped as overflow": Reason(
        dropped,
        {"max_length": 4, "overflow": "drop_lowest"},
        _leave_out("send", _DROP),
        5,
    ),
    "dead for too long": Reason(
        retained,
        {"max_retries": 0, "dead_retention": 1.0},
        _leave_out("nack", _DROP),
        2,
    ),
    "merged": Reason(merged, {}, [], 12),
    "repeated": Reason(repeated, {}, [], 3),
    "deduplicated": Reason(deduplicated, {}, [], 3),
    "refused": Reason(refused, {"max_length": 3}, [], 4),
}


def _run(kind: str, server: Any, client: Any, name: str, reason: Reason) -> rmq.AuditResult:
    with producer(kind, server) as theirs:
        topic = theirs.topic(name, **reason.settings)
        topic.open()
        other = client.topic(name)
        if "expires" in reason.settings:
            _take(other, 0)
        reason.scene(theirs, topic, other)
    return client.admin.audit(name, older_than=0)


@pytest.mark.parametrize("which", REASONS)
def test_nothing_is_missing(kind, server, client, name, which):
    found = _run(kind, server, client, name, REASONS[which])

    assert found.missing == 0, found.lost
    assert adds_up(found)
    assert found.seen + found.accounted > 0


@pytest.mark.parametrize("which", REASONS)
def test_nothing_else_is_missing_where_one_was_lost(server, client, name, which):
    _run("sync", server, client, name, REASONS[which])
    with producer("sync", server) as theirs:
        id = theirs.topic(name).send("z", priority=1_000_000, expires=60).id
        raw = server.raw()
        number = lose(raw, name, id)
        raw.close()

    found = client.admin.audit(name, older_than=0)

    assert lost(found) == {number}


@pytest.mark.parametrize("which", REASONS)
def test_without_this_account_the_audit_would_report_it(
    server, client, name, which, monkeypatch: pytest.MonkeyPatch
):
    reason = REASONS[which]
    if reason.mutant:
        monkeypatch.setattr(script_loader, "load", loader(reason.mutant))
    else:
        monkeypatch.setattr(report, "record_numbers", _all_stand)

    found = _run("sync", server, client, name, reason)

    assert found.missing == reason.least


def _all_stand(groups: Any, results: Any) -> None:
    for group in groups:
        group.sequence.finish(group.numbers)


def test_lost_reply_to_a_send_leaves_the_message_watched(server, client, name, monkeypatch):
    """The repeat gets the first answer."""
    with producer("sync", server) as theirs:
        topic = theirs.topic(name)
        topic.open()
        send, twice = theirs._transport._command, []

        def run_twice(command: Command[Any]) -> Any:
            if command.script.name == "send":
                twice.append(send(command))
            return send(command)

        monkeypatch.setattr(theirs._transport, "_command", run_twice)
        result = topic.send("a")
        assert (result.status, len(twice)) == ("stored", 1)
    raw = server.raw()
    number = lose(raw, name, result.id)
    raw.close()

    assert lost(client.admin.audit(name, older_than=0)) == {number}


def test_send_whose_outcome_is_unknown_is_not_promised(server, client, name, monkeypatch):
    with producer("sync", server) as theirs:
        topic = theirs.topic(name)
        topic.send("first")
        whole = theirs._transport._command

        def broken(command: Command[Any]) -> Any:
            if command.script.name == "send":
                raise rmq.OutcomeUnknown("no reply")
            return whole(command)

        with monkeypatch.context() as patched:
            patched.setattr(theirs._transport, "_command", broken)
            with pytest.raises(rmq.OutcomeUnknown):
                topic.send("nobody knows")
        topic.send("last")

    found = client.admin.audit(name, older_than=0)
    assert (found.numbered, found.accounted, found.missing) == (3, 1, 0)
