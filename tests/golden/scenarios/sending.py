"""Opening topics, and sending to them."""

from __future__ import annotations

import contextlib
from datetime import timedelta

import rmq
from tests.golden.scenarios.registry import NOW, scenario
from tests.golden.wire import Scene


@scenario
def open_creates(scene: Scene) -> None:
    """Open a topic that is missing, with settings."""
    scene.topic(
        slots=2, default_priority=70, timed_priority=50, lease=20, max_retries=3,
        retry=rmq.Exponential(base=1, cap=60), dedup_window=30, max_length=100, max_body=1000,
        expires=3600, dead_retention=86_400,
    ).open()  # fmt: skip


@scenario
def open_existing(scene: Scene) -> None:
    """Open a topic that another client has created, and one that is missing."""
    scene.topic(slots=2).open()
    other = scene.connect()
    other.topic("orders").open()
    other.topic("orders", slots=2).open(create=False)
    with contextlib.suppress(rmq.TopicNotFound):
        other.topic("missing").open(create=False)


@scenario
def settings_are_read_again(scene: Scene) -> None:
    """Use a topic whose settings were read 31 s before."""
    topic = scene.topic()
    topic.send("before")
    scene.advance(31)
    topic.send("after")


@scenario
def scripts_are_missing(scene: Scene) -> None:
    """Send to a server that has lost the scripts, one message and several."""
    topic = scene.opened(slots=2)
    scene.flush_scripts()
    topic.send(1)
    scene.flush_scripts()
    topic.send_many([rmq.Outgoing(n, slot_basis=f"basis {4 * n}") for n in range(4)])


@scenario
def send_plain(scene: Scene) -> None:
    """Send a body alone, by the first call of a client and by the next ones."""
    topic = scene.topic()
    topic.send({"id": 7, "name": "Zoë"})
    topic.send(None)


@scenario
def send_with_priority(scene: Scene) -> None:
    topic = scene.opened()
    topic.send(1, priority=900)
    topic.send(2, priority=17)


@scenario
def send_with_time(scene: Scene) -> None:
    """Send messages that are due later, by delay and by time, and one that was due before."""
    topic = scene.opened()
    topic.send(1, delay=2.5)
    topic.send(2, delay=timedelta(hours=1), priority=300)
    topic.send(3, at=NOW + timedelta(days=1))
    topic.send(4, at=NOW - timedelta(seconds=5))


@scenario
def send_with_merge_key(scene: Scene) -> None:
    """Merge in each of the ways: the first stays, the last stays, all are collected."""
    topic = scene.opened()
    for body in range(2):
        topic.send(body, merge_key="first", time_range=5)
        topic.send(body, merge_key="last", time_range=5, merge="last", priority=300)
        topic.send(body, merge_key="all", time_range=5, merge="collect", extend=True, max_wait=20)


@scenario
def send_with_dedup_key(scene: Scene) -> None:
    topic = scene.opened(slots=3)
    for _ in range(2):
        topic.send("paid", dedup_key="invoice 7")
    topic.send("paid", dedup_key=b"\x00\xff", slot_basis="customer")


@scenario
def send_with_own_id(scene: Scene) -> None:
    """Send an id that was made before, twice."""
    topic = scene.opened(slots=2)
    first, second = topic.new_id(), topic.new_id("customer 3")
    for _ in range(2):
        topic.send(1, id=first)
        topic.send(2, id=second, slot_basis="customer 3")


@scenario
def send_with_envelope(scene: Scene) -> None:
    """Send messages with expiry, headers, type, retry and run time."""
    topic = scene.opened()
    topic.send(1, expires=30)
    topic.send(2, headers={"trace": "00-4bf9", "tenant": "äß"})
    topic.send(3, type="order.paid")
    topic.send(4, retry=rmq.Levels((1, 5, 60)), max_runtime=2.5)
    topic.send(
        5, retry="immediate", expires=60, delay=5, priority=200, headers={"a": "b"}, type="t"
    )


@scenario
def send_in_other_codecs(scene: Scene) -> None:
    scene.opened("packed", codec="msgpack").send({"id": 7})
    scene.opened("raw", codec="bytes").send(b"\x00\x01raw")


@scenario
def send_by_slot(scene: Scene) -> None:
    """Send to the slots of bases, as text and as bytes."""
    topic = scene.opened(slots=4)
    for basis in ("customer 1", "customer 2", b"customer 2"):
        topic.send(basis if isinstance(basis, str) else "bytes", slot_basis=basis)


@scenario
def send_many_alike(scene: Scene) -> None:
    """Send messages that differ in their bodies alone, to one slot and by turns to several."""
    one, three = scene.opened("one"), scene.opened("three", slots=3)
    one.send_many([rmq.Outgoing(n) for n in range(5)])
    one.send_many([rmq.Outgoing(n, priority=200) for n in range(3)])
    one.send_many([])
    three.send_many([rmq.Outgoing(n) for n in range(250)])


@scenario
def send_many_mixed(scene: Scene) -> None:
    """Send messages of all kinds in one call."""
    scene.opened(slots=2).send_many(
        [
            rmq.Outgoing(1),
            rmq.Outgoing(2, slot_basis="b", priority=300),
            rmq.Outgoing(3, slot_basis="a", delay=5),
            rmq.Outgoing(4, slot_basis="a", dedup_key="four"),
            rmq.Outgoing(5, merge_key="five", time_range=5),
            rmq.Outgoing(6, headers={"a": "b"}, type="six", expires=9),
        ]
    )


@scenario
def send_large(scene: Scene) -> None:
    """Send bodies that stand beside their records, alone and in batches, and take them."""
    topic = scene.opened(max_body=100_000)
    topic.send("x" * 20_000)
    topic.send("y" * 20_000, priority=300, headers={"a": "b"})
    topic.send_many([rmq.Outgoing("z" * 20_000), rmq.Outgoing("short", priority=300)])
    topic.send_many([rmq.Outgoing("u" * 20_000), rmq.Outgoing("v" * 20_000)])
    with topic.consumer() as consumer:
        consumer.ack(consumer.receive(100))


@scenario
def send_to_a_full_topic(scene: Scene) -> None:
    topic = scene.opened(max_length=2, slots=2)
    for body in range(3):
        with contextlib.suppress(rmq.QueueFull):
            topic.send(body, slot_basis="a")


@scenario
def send_durably(scene: Scene) -> None:
    """Wait for replicas of a server that has none."""
    topic = scene.opened()
    copies = rmq.Replicated(1, timeout=0.001)
    with contextlib.suppress(rmq.NotDurable):
        topic.send(1, durability=copies)
    with contextlib.suppress(rmq.NotDurable):
        topic.send_many([rmq.Outgoing(2), rmq.Outgoing(3)], durability=copies)


@scenario
def send_with_audit(scene: Scene) -> None:
    """Number messages, report the last ones, and audit the topic."""
    client = scene.connect(interceptors=[rmq.Audit()])
    topic = client.topic("orders")
    topic.send(1)
    topic.send_many([rmq.Outgoing(2), rmq.Outgoing(3, delay=5)])
    with topic.consumer() as consumer:
        consumer.ack(consumer.receive(1))
    scene.admin.audit("orders", older_than=0)


@scenario
def stage_and_publish(scene: Scene) -> None:
    """Stage messages, publish them once for a batch of a query, and discard others."""
    topic = scene.opened(slots=2)
    stage = topic.stage("stage-1", keep=3600)
    stage.push([rmq.Outgoing(1, slot_basis="a"), rmq.Outgoing(2, slot_basis="b", delay=5)])
    stage.push_bodies(range(5))
    topic.publish([stage.staged])
    batch = topic.stage()
    batch.push_bodies([1])
    for _ in range(2):
        topic.publish([batch.staged], query="totals", batch=3)
    other = topic.stage("stage-2")
    other.push([rmq.Outgoing(3)])
    topic.discard([other.staged])
    other.discard()
    scene.admin.sinks("orders", "totals")
    scene.admin.forget_sink("orders", "totals")
