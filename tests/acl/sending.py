"""The steps of every role, and of producers."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import rmq
from rmq.kernel.producer import scripts
from rmq.kernel.topic import opening
from rmq.kernel.transport.acl import ROLES
from rmq.kernel.transport.flow.steps import RawCommand
from rmq.sql.outbox import lost
from tests.acl.registry import LARGE, ON_TOPICS, handed, inner_of, of, waiting
from tests.acl.scene import Scene, version_of
from tests.patience import wait_for


@of(*ROLES)
def connects(s: Scene) -> None:
    s.api.ping()
    other = f"{s.url.rpartition('/')[0]}/1"
    with rmq.Client(other, retry_for=0) as client:
        client.ping()


@of(*ROLES)
def asks_for_the_role_of_the_server(s: Scene) -> None:
    """As connections to a master do that sentinels have named."""

    def flow() -> Any:
        return (yield RawCommand("connect", "ROLE"))

    assert s.run(flow())[0] == b"master"


@of(*ON_TOPICS)
def loads_scripts(s: Scene) -> None:
    s.full.topic(s.name).open()
    s.raw.script_flush()
    s.api.topic(s.name).open(create=False)


@of("producer", "consumer", "worker")
def opens(s: Scene) -> None:
    assert s.api.topic(s.name, slots=3).open()


@of("producer", "consumer", "worker")
def opens_anew(s: Scene) -> None:
    s.full.topic(s.name).open()
    s.raw.delete(f"rmq:{{{s.name}}}:topic")  # its slot is there still, and empty
    time.sleep(0.002)
    assert s.api.topic(s.name).open()


@of("producer", "server")
def sends_to_a_store(s: Scene) -> None:
    s.topic()
    own = rmq.Offloaded(f"memory://{s.name}", above=100)
    topic = s.api.topic(s.name, codec=own)
    topic.send("x" * 1000, dedup_key="a")
    assert topic.send("x" * 1000, dedup_key="a").status == "duplicate"


@of("producer", "server")
def sends(s: Scene) -> None:
    topic = s.topic()
    topic.send(1)
    topic.send(2, priority=900)
    topic.send(3, delay=60)
    topic.send_many([rmq.Outgoing(n, delay=60) for n in range(300)])
    assert s.full.admin.stats(s.name)["records"] == 303


@of("producer", "server")
def sends_to_a_full_slot_of_a_topic_that_was_resized(s: Scene) -> None:
    s.full.topic(s.name, max_length=4).open()
    s.full.admin.topic_resize(s.name, 2)
    for n in range(4):
        s.topic().send(n, dedup_key=str(n))
    assert s.full.admin.stats(s.name)["records"] == 4


@of("producer", "server")
def sends_after_old_sessions(s: Scene) -> None:
    s.full.topic(s.name).send(1)
    s.later(400)
    s.topic().send(2)


@of("producer", "server")
def sends_large_bodies(s: Scene) -> None:
    id = s.topic().send(LARGE).id
    assert s.api.topic(s.name).get(id).body == LARGE


@of("producer")
def sends_ids_that_it_keeps(s: Scene) -> None:
    topic = s.topic(dedup_window=60)
    id = topic.new_id()
    topic.send(1, id=id)
    with s.full.topic(s.name).consumer() as consumer:
        consumer.receive()[0].ack()
    assert topic.send(1, id=id).status == "duplicate"


@of("producer", "server")
def sends_for_good(s: Scene) -> None:
    topic = s.topic()
    with contextlib.suppress(rmq.NotDurable):
        topic.send(1, durability=rmq.Replicated(1, timeout=0.01))


@of("producer", "server")
def sends_to_the_disk(s: Scene) -> None:
    if version_of(s.server) == "7.2":
        try:
            s.topic().send(1, durability=rmq.Fsync(0, timeout=0.01))
        except rmq.AccessDenied:
            raise
        except (rmq.ConfigurationError, rmq.NotDurable):
            pass  # this server keeps no log


@of("producer", "server")
def merges(s: Scene) -> None:
    topic = s.topic()
    for _ in range(2):
        topic.send(1, merge_key="k", time_range=60, merge="last")


@of("producer", "server")
def drops_the_lowest(s: Scene) -> None:
    topic = s.topic(max_length=1, overflow="drop_lowest")
    topic.send(LARGE, priority=20)
    topic.send(1, priority=900)


@of("producer", "server")
def hands_over(s: Scene) -> None:
    with waiting(s) as got:
        s.topic().send(1)
        handed(s, got)


@of("producer")
def changes_what_waits(s: Scene) -> None:
    topic = s.topic()
    ids = [s.full.topic(s.name).send(n, delay=60).id for n in range(2)]
    assert topic.reschedule(ids[0], delay=30) == "rescheduled"
    topic.set_priority(ids[0], 30)
    assert topic.cancel(ids[1]) == "cancelled"


@of("producer")
def stages_and_publishes(s: Scene) -> None:
    topic = s.topic(dedup_window=60)
    for number in range(2):
        stage = topic.stage()
        stage.push([rmq.Outgoing(n) for n in range(3)])
        topic.publish([stage.staged], query="q", batch=number)
    stage = topic.stage()
    stage.push_bodies([1, 2])
    stage.discard()


@of("producer", "worker")
def declares_schedules(s: Scene) -> None:
    s.topic()
    assert s.api.topic(s.name).every("nightly", every=3600).declare() == "created"


@of("producer")
def numbers_its_messages(s: Scene) -> None:
    s.topic()
    client = s.connect(interceptors=[rmq.Audit()])
    for number in range(3):
        client.topic(s.name).send(number, merge_key="k", time_range=60)
        client.topic(s.name).send(number)
    inner = inner_of(client)

    def flow() -> Any:
        for sequence in inner._hooks.producer_sequence.slot_sequences():
            told = sequence.next_report()
            yield scripts.audit_report(
                sequence.keys, sequence.producer, told.old, told.sent, told.ranges
            )

    if s.kind == "sync":
        inner._transport.run(flow())
    else:
        client.loop.run_until_complete(inner._transport.run(flow()))


@of("producer")
def locates(s: Scene) -> None:
    id = s.topic().send(1).id
    topic = inner_of(s.api.topic(s.name))
    s.run(opening.open(topic._context))
    assert s.run(lost.locate(topic._context, lambda context: [id]))[0].queue == "store"


@of("consumer", "worker", "viewer")
def reads_a_result(s: Scene) -> None:
    id = s.full.topic(s.name).send(1, keep_result=60).id
    assert s.api.topic(s.name).result(id).read().place == "waiting"


@of("producer", "operator", "server")
def waits_for_a_result(s: Scene) -> None:
    id = s.full.topic(s.name).send(1, keep_result=60).id
    handle = s.api.topic(s.name).result(id)
    signals = inner_of(s.api.topic(s.name))._context.result_signals

    def end() -> None:
        wait_for(
            lambda: signals._subscription and signals._subscription.connection, "nobody listens"
        )
        with s.full.topic(s.name).consumer() as consumer:
            consumer.receive()[0].ack(result=2)

    ending = threading.Thread(target=end)
    ending.start()
    try:
        assert handle.wait(60).value == 2
    finally:
        ending.join()
    if type(signals._subscription.connection).__name__ == "SubscriptionRefused":
        raise rmq.AccessDenied("+subscribe")  # it reads once a second, and a log line says so
