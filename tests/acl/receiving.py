"""The steps of consumers and workers."""

from __future__ import annotations

import contextlib
from typing import Any

import rmq
import rmq.connectors
from rmq.features.audit import flows as audit_flow
from rmq.features.schedules.dispatch import Dispatch, read_due, send_due
from rmq.features.workers import flows
from rmq.kernel.consumer import rollback, scripts as consumer_scripts
from rmq.kernel.follow_ups import flows as follow_ups, scripts as follow_up_scripts
from rmq.kernel.topic import opening, scripts, tidy
from tests.acl.registry import (
    LARGE,
    RUN,
    first,
    handed,
    inner_of,
    of,
    settle_one_with_a_dedup_key,
    waiting,
)
from tests.acl.scene import Scene


@of("consumer", "worker", "server")
def receives_and_settles(s: Scene) -> None:
    s.topic(retry="immediate")
    s.full.topic(s.name).send_many([rmq.Outgoing(n, priority=20 + n) for n in range(8)])
    with s.api.topic(s.name).consumer() as consumer:
        deliveries = consumer.receive(6)
        deliveries[0].ack()
        deliveries[1].nack(error="why")
        deliveries[2].reject("why")
        deliveries[3].release()
        deliveries[4].extend(60)
        assert consumer.ack(deliveries[4:]) == []
        for delivery in consumer.receive(6):
            delivery.nack(delay=60)


@of("consumer", "worker", "server")
def adds_to_a_full_history(s: Scene) -> None:
    s.topic(history="keep=1h,max_bytes=1MiB")
    slot = f"rmq:{{{s.name}_0}}:slot"
    s.full.topic(s.name).send_many([rmq.Outgoing(n) for n in range(2)])
    # Each ack ends a part, and removes it with the references to offloaded bodies.
    s.raw.hset(slot, mapping={"history": "1:3600000", "offloaded": 0})
    with s.api.topic(s.name).consumer() as consumer:
        assert consumer.ack(consumer.receive(2)) == []


@of("consumer", "worker", "server", "operator", "viewer")
def reads_a_history(s: Scene) -> None:
    s.topic(history="keep=1h,max_bytes=1MiB")
    s.full.topic(s.name).send(1)
    with s.full.topic(s.name).consumer() as consumer:
        consumer.ack(consumer.receive())

    reader = s.api.topic(s.name).history

    assert [message.body for message in reader.read().messages] == [1]
    assert reader.state().entries == 1


@of("server", "operator", "viewer")
def counts_a_history(s: Scene) -> None:
    s.topic(history="keep=1h,max_bytes=1MiB")
    s.full.topic(s.name).send(1)
    with s.full.topic(s.name).consumer() as consumer:
        consumer.ack(consumer.receive())

    assert s.api.admin.stats(s.name)["history_bytes"] > 0


@of("consumer", "worker", "server", "operator")
def sweeps_a_history(s: Scene) -> None:
    s.topic(history="keep=1h,max_bytes=1MiB")
    s.full.topic(s.name).send(1)
    with s.full.topic(s.name).consumer() as consumer:
        consumer.ack(consumer.receive())
    s.raw.hset(f"rmq:{{{s.name}_0}}:slot", mapping={"history": "1:3600000", "offloaded": 0})
    context = inner_of(s.api.topic(s.name))._context

    s.run(opening.open(context))
    s.run(tidy.tidy(context))


@of("consumer", "worker")
def reports_progress(s: Scene) -> None:
    s.topic()
    s.full.topic(s.name).send(1, keep_result=60)
    with s.api.topic(s.name).consumer() as consumer:
        (delivery,) = consumer.receive()
        delivery.progress(0.5, "half")
        delivery.step("charge", int)
        delivery.ack(result=2)


@of("consumer", "worker")
def sends_follow_ups(s: Scene) -> None:
    s.topic()
    topic = s.full.topic(s.name)
    topic.send("first")
    with s.api.topic(s.name).consumer() as consumer:
        (delivery,) = consumer.receive()
        delivery.then(s.name, "next")
        s.full.admin.topic_pause(s.name, verb="send")
        delivery.ack()
        s.full.admin.topic_resume(s.name, verb="send")
    s.later(60)
    context = inner_of(s.api.topic(s.name))._context
    s.run(opening.open(context, create=False))
    keys = context.slots[0]

    def flow() -> Any:
        assert (yield follow_up_scripts.pending(keys)).entries == 1
        yield from follow_ups.send_target(context, keys, f"{s.name}:0")
        assert (yield follow_up_scripts.pending(keys)).entries == 0

    s.run(flow())


@of("consumer", "worker")
def receives_from_a_store(s: Scene) -> None:
    s.topic()
    own = rmq.Offloaded(f"memory://{s.name}", above=100)
    topic = s.full.topic(s.name, codec=own)
    topic.send("x" * 1000)
    with s.api.topic(s.name).consumer() as consumer:
        assert consumer.ack(consumer.receive(1)) == []
    assert own.store.find(s.name, topic._context.identity, 1 << 42) == {}


@of("consumer", "worker", "server")
def receives_many(s: Scene) -> None:
    s.topic(dedup_window=60)
    s.full.topic(s.name).send_many([rmq.Outgoing(n) for n in range(400)])
    with s.api.topic(s.name).consumer() as consumer:
        assert consumer.ack(consumer.receive(400)) == []


@of("consumer", "worker", "server")
def receives_timed(s: Scene) -> None:
    s.topic()
    s.full.topic(s.name).send_many(
        [rmq.Outgoing(n, delay=10, priority=30 if n % 2 else None) for n in range(6)]
    )
    s.later(20)
    with s.api.topic(s.name).consumer() as consumer:
        assert len(consumer.receive(10)) == 6


@of("consumer", "worker", "server")
def receives_large_bodies(s: Scene) -> None:
    s.full.topic(s.name).send(LARGE)
    with s.topic().consumer() as consumer:
        (delivery,) = consumer.receive()
        assert delivery.body == LARGE
        delivery.ack()


@of("consumer", "worker")
def receives_audited(s: Scene) -> None:
    with rmq.Client(s.server.url, interceptors=[rmq.Audit()]) as client:
        client.topic(s.name).send_many([rmq.Outgoing(n) for n in range(3)])
    with s.topic().consumer() as consumer:
        for delivery in consumer.receive(3):
            delivery.ack()


@of("consumer", "worker", "server")
def rolls_back(s: Scene) -> None:
    s.full.topic(s.name, lease=5, retry="immediate").send(1)
    with s.full.topic(s.name).consumer() as consumer:
        consumer.receive()
        s.later(60)
        with s.topic().consumer() as mine:
            assert mine.receive()[0].attempt == 2


@of("consumer", "worker", "operator")
def rolls_back_shared_leases(s: Scene) -> None:
    s.full.topic(s.name, lease=5, retry="immediate").send(1)
    s.full.topic(s.name).query(RUN, "there", lease=5).take({})
    s.later(60)
    topic = inner_of(s.topic())
    assert s.run(rollback.rollback_topic(topic._context)) == 1


@of("consumer", "worker")
def receives_in_order(s: Scene) -> None:
    s.full.topic(s.name).send_many([rmq.Outgoing(n) for n in range(4)])
    with s.topic().consumer(ordered=True) as consumer:
        deliveries = consumer.receive(2)
        deliveries[0].nack(delay=0)
        deliveries[1].ack()
        consumer.receive(2)


@of("consumer", "worker")
def receives_at_most_once(s: Scene) -> None:
    s.full.topic(s.name).send(1)
    with s.topic().consumer(mode="at_most_once") as consumer:
        assert len(consumer.receive()) == 1


@of("consumer", "worker", "server")
def keeps_limits(s: Scene) -> None:
    s.topic(limit=rmq.Rate(2, per=1, key="k"))
    s.full.topic(s.name).send_many([rmq.Outgoing(n, headers={"k": str(n % 2)}) for n in range(8)])
    with s.api.topic(s.name).consumer() as consumer:
        consumer.ack(consumer.receive(8))
        s.later(600)
        consumer.ack(consumer.receive(8))


@of("consumer", "worker", "server")
def waits(s: Scene) -> None:
    s.topic()
    with s.api.topic(s.name).consumer() as consumer:
        state = inner_of(consumer)._flows.state
        for wait in (0.3, 1, 3, 10):  # a subscription that takes long leaves no time for a credit
            assert consumer.receive(wait=wait) == []  # leaves a credit, and withdraws it
            held = state.subscription.connection
            if type(held).__name__ == "SubscriptionRefused":  # it polls, and a log line says so
                raise rmq.AccessDenied("+subscribe")
            if state.credits._number or (held is not None and not state.subscription.own_channel):
                return
        raise AssertionError("no credit was left")


@of("consumer", "worker", "server")
def gives_to_another_that_waits(s: Scene) -> None:
    s.topic(retry="immediate")
    s.full.topic(s.name).send(1)
    with s.api.topic(s.name).consumer() as consumer:
        (delivery,) = consumer.receive()
        with waiting(s) as got:
            delivery.release()
            handed(s, got)


@of("consumer", "worker")
def claims_keys(s: Scene) -> None:
    s.topic(retry="immediate")
    s.full.topic(s.name).send_many([rmq.Outgoing({"k": n // 2}) for n in range(4)])
    with s.api.topic(s.name).consumer() as consumer:
        batch = consumer.receive(4)
        won = first(s, batch, key=lambda body: str(body["k"]))
        assert len(won) == 2
        mine = [delivery for delivery in batch if inner_of(delivery) in won]
        mine[0].extend(50)
        mine[0].ack()
        mine[1].release()


@of("consumer", "worker")
def finds_keys_claimed_by_others(s: Scene) -> None:
    s.full.topic(s.name, retry="immediate").send_many([rmq.Outgoing(n) for n in range(2)])
    with s.full.topic(s.name).consumer() as other, s.topic().consumer() as consumer:
        assert len(rmq.Claims().first(other.receive(), key=lambda body: "1")) == 1
        assert first(s, consumer.receive()) == []


@of("consumer", "worker")
def notices_a_key_that_is_no_claim(s: Scene) -> None:
    s.full.topic(s.name).send(1)
    s.raw.rpush(f"rmq:{{{s.name}_0}}:claim:default:1", "x")
    with s.topic().consumer() as consumer, contextlib.suppress(rmq.ScriptFailed):
        first(s, consumer.receive())


@of("consumer", "worker")
def replays_a_query(s: Scene) -> None:
    topic = s.topic()
    s.full.topic(s.name).send_many([rmq.Outgoing(n) for n in range(5)])
    query = topic.query(RUN, "here")
    assert sum(query.waiting()) == 5
    end = query.take({}, 2)
    blocks = [block for slot in end for block in query.read(slot, 0, end[slot])]
    assert sum(len(block.numbers) for block in blocks) == 2
    assert sum(query.handed(slot) for slot in end) == 2
    assert query.begun("1", "me") == 1
    query.again(end)
    end = query.take({})
    assert query.settle(end)[0] == 2
    end = query.take(end, 2)
    slot, newest = next((slot, last) for slot, last in end.items() if last > 2)
    (block,) = query.read(slot, newest - 1, newest)
    failed = rmq.connectors.FailedMessage(slot, newest, block.ids, "why")
    assert query.fail([failed], retry=False).dead == 1
    assert query.reject(end, "why") == 1
    query.take(end)
    query.renew(end)
    assert query.give_back(end) == 1
    query.take(end)
    query.keep(end)
    assert query.release() == 1
    query.wait(0.01)
    query.close()


@of("consumer", "worker")
def drops_old_dead_letters(s: Scene) -> None:
    s.topic(dead_retention=60, dedup_window=60)
    s.full.topic(s.name).send_many([rmq.Outgoing(LARGE), rmq.Outgoing(2)])
    with s.full.topic(s.name).consumer() as consumer:
        consumer.receive()[0].reject("why")
        consumer.receive()[0].ack()
    s.later(600)
    topic = inner_of(s.api.topic(s.name))
    s.run(opening.open(topic._context))
    s.run(tidy.tidy(topic._context))


# --- workers ---------------------------------------------------------------------------------


@of("worker")
def reports_its_status(s: Scene) -> None:
    s.run(flows.report("rmq", "0" * 8, lambda now_ms: "{}", 1000))
    s.run(flows.forget("rmq", "0" * 8))


@of("worker")
def serves_schedules(s: Scene) -> None:
    settle_one_with_a_dedup_key(s)
    declaration = s.full.topic(s.name).every("quick", every=1)
    declaration.declare()
    s.later(5)
    with rmq.Client(s.url, retry_for=0) as client:  # as a worker of an async client has one
        ((_, reply),) = client._transport.run(read_due("rmq", [s.name]))
        if isinstance(reply, rmq.RMQError):
            raise reply
        _, errors = client._transport.run(send_due(declaration.context, reply.due, reply.now_ms))
        for error in errors.values():
            raise error
        assert s.full.admin.stats(s.name)["records"] >= 1
        s.full.admin.schedule_delete(s.name, "quick")
        dispatch = Dispatch("rmq", client._transport, client._handlers, [declaration.context])
        dispatch.send_due()  # removes the entry of the topic


@of("worker")
def keeps_and_gives_back_shared_leases(s: Scene) -> None:
    id = s.full.topic(s.name).send(1).id
    topic = inner_of(s.topic())
    s.run(opening.open(topic._context))
    (keys,) = topic._context.slots

    def flow() -> Any:
        assert (yield scripts.get(keys, id))
        yield from rollback.release_orphans(topic._context, {0: 1}, lambda id: False)
        yield consumer_scripts.lease_renew(keys, 1, 60_000)
        yield consumer_scripts.lease_release(topic._context.channel, keys, 1, 1)

    s.run(flow())


@of("worker")
def audits_now_and_then(s: Scene) -> None:
    s.full.topic(s.name).send(1)
    topic = inner_of(s.topic())
    s.run(audit_flow.audit(topic._context, 0, every_ms=1))
