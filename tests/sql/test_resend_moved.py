"""Messages that were redriven to another topic are not lost, and are confirmed there."""

from __future__ import annotations

import pytest

import rmq
from rmq.kernel.topic import scripts
from rmq.outbox import Round
from rmq.sql.outbox import inspect
from rmq.sql.outbox.lost import LossDetector
from tests.patience import wait_for
from tests.sql.lossy import Lossy


def move(scene: Lossy, other: str) -> str:
    """Send a stub, let its message die, and redrive it to another topic; return the stub's id."""
    scene.client.topic(other, retry="immediate", dedup_window=0).open()
    id = scene.sent("for another topic")
    with scene.topic.consumer() as consumer:
        (delivery,) = consumer.receive(1)
        delivery.reject("wrong topic")
    assert scene.client.admin.redrive(scene.name, to=other).sent == 1
    scene.age(id)
    return id


def ignore_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Break the detector: it takes what was moved for gone."""
    locate = LossDetector._locate

    def without_moves(self: LossDetector, due: object) -> object:
        located = locate(self, due)  # type: ignore[arg-type]
        return {seq: at and at._replace(is_moved=False) for seq, at in located.items()}

    monkeypatch.setattr(LossDetector, "_locate", without_moves)


def test_a_message_that_was_moved_is_never_sent_again(scene: Lossy, name: str) -> None:
    id = move(scene, f"{name}-other")

    assert scene.round() == Round(waiting=1)

    # Redis forgets that it was moved; the stub does not.
    with scene.server.raw() as raw:
        assert raw.delete(scene.topic._context.slots[0].arrivals) == 1
    assert scene.round() == Round()
    assert scene.place(id) is None
    row = scene.row(id)
    assert (row.status, row.sends) == ("unconfirmed", 1)
    assert inspect.counts(scene.engine).next_resend is None
    (entry,) = inspect.entries(scene.engine)
    assert entry.resend_at is None


def test_a_resender_that_ignores_moves_sends_the_message_a_second_time(
    scene: Lossy, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ignore_moves(monkeypatch)
    id = move(scene, f"{name}-other")

    assert scene.round() == Round(sent=1)

    assert scene.place(id) == "store"
    assert scene.client.admin.stats(f"{name}-other")["accepted"] == 1


def test_a_message_that_was_moved_by_an_interrupted_redrive_is_a_dead_letter_until_it_is_gone(
    scene: Lossy, name: str
) -> None:
    other = scene.client.topic(f"{name}-other", dedup_window=0)
    other.open()
    id = scene.sent()
    with scene.topic.consumer() as consumer:
        consumer.receive(1)[0].reject("wrong topic")
    with scene.server.raw() as raw:  # it is stored there, and its removal here did not happen
        keys, member = scene.topic._context.slots[0], scene.message(id).member
        raw.zadd(other._context.slots[0].arrivals, {member + b"token 01": 9e15})

    assert scene.round() == Round(waiting=1)

    assert scene.place(id) == "dead"
    assert raw.zscore(keys.arrivals, member) is None


def test_a_consumer_of_the_other_topic_does_the_work_and_confirms_the_stub(
    scene: Lossy, name: str
) -> None:
    other = f"{name}-other"
    id = move(scene, other)
    assert scene.round() == Round(waiting=1)
    done = []
    topic = scene.client.topic(other)

    @topic.handler
    @scene.outbox.confirms(scene.engine)
    @rmq.idempotent(rmq.Claims(), check=scene.outbox.unconfirmed(scene.engine))
    def handle(body: str) -> None:
        done.append(body)

    with rmq.Worker(scene.client, heartbeat="thread"):
        wait_for(lambda: scene.status(id) == "confirmed")

    assert done == ["for another topic"]
    assert scene.status(id) == "confirmed"


def test_a_moved_message_is_sent_again_by_hand(scene: Lossy, name: str) -> None:
    id = move(scene, f"{name}-other")
    assert scene.round() == Round(waiting=1)

    with scene.engine.begin() as connection:
        scene.outbox.resend(connection, id)

    assert scene.relay.run_once() == 1
    assert scene.place(id) == "store"


def test_a_message_without_a_kept_id_leaves_no_note(scene: Lossy, name: str) -> None:
    other = f"{name}-other"
    scene.client.topic(other).open()
    sent = scene.topic.send("direct")
    with scene.topic.consumer() as consumer:
        consumer.receive(1)[0].reject("wrong topic")

    scene.client.admin.redrive(scene.name, to=other)

    with scene.server.raw() as raw:
        assert not raw.exists(scene.topic._context.slots[0].arrivals)
    keys = scene.topic._context.slots[0]

    def flow():  # type: ignore[no-untyped-def]
        return (yield scripts.locate(keys, [sent.id]))

    assert scene.client._transport.run(flow()).codes == "g"
