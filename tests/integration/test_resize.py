"""Topics that are resized while they are used, by clients of both kinds."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

import rmq
from rmq.features.schedules import dispatch
from rmq.features.topic_admin import resize, scripts
from rmq.kernel.consumer import claim_flows
from rmq.kernel.core.record import value_of
from rmq.kernel.topic import opening
from rmq.kernel.topic.slot_choice import slot_of
from tests.conftest import Clock
from tests.integration.driven import both_clients
from tests.integration.handling import Scene
from tests.integration.test_follow_ups import sweep
from tests.integration.test_topic_change import Cut, Cutting, slots_of
from tests.patience import wait_for
from tests.servers import Server


def basis_of(slot: int, slots: int, nth: int = 0) -> str:
    """Return a basis of this slot."""
    found = (str(n) for n in range(100_000) if slot_of(str(n), slots) == slot)
    return [next(found) for _ in range(nth + 1)][-1]


def drain(topic: Any, ordered: bool = False) -> list[Any]:
    """Receive and settle all that comes within a time; return the bodies."""
    bodies = []
    with topic.consumer(ordered=ordered) as consumer:
        while batch := consumer.receive(10, wait=1):
            bodies += [delivery.body for delivery in batch]
            consumer.ack(batch)
    return bodies


@both_clients
def test_new_messages_of_a_basis_wait_for_the_older_ones_in_another_slot(
    api: Any, server: Server, name: str
) -> None:
    key = basis_of(5, 8)  # slot 1 of 2, slot 5 of 8
    topic = api.topic(name, slots=2)
    first = topic.send("first", slot_basis=key)

    begun = api.admin.topic_resize(name, 8, wait=False)
    second = topic.send("second", slot_basis=key)

    assert begun == resize.ResizeResult(2, 8, 1, 0, 1)
    assert (first.id.slot, second.id.slot) == (1, 5)
    counts = api.admin.stats_by_slot(name)
    assert [bool(one["paused_ms"]) for one in counts] == [False, False] + [False, True] * 3
    with topic.consumer() as consumer:
        (delivery,) = consumer.receive(10, wait=0.5)
        assert delivery.body == "first"
        assert api.admin.topic_resize(name, 8, wait=False).pending == 1, "it is in flight"
        delivery.ack()

        assert api.admin.topic_resize(name, 8).pending == 0

        (delivery,) = consumer.receive(10, wait=5)
        assert (delivery.body, delivery.id) == ("second", second.id)
        delivery.ack()
    assert slots_of(server, name, "paused") == {None}


@both_clients
def test_newer_messages_of_a_group_wait_for_its_retry_in_another_slot(api: Any, name: str) -> None:
    group = basis_of(5, 8)  # slot 1 of 2, slot 5 of 8
    topic = api.topic(name, slots=2, groups=rmq.Groups())
    topic.send("first", group=group)
    with topic.consumer() as consumer:
        (delivery,) = consumer.receive()
        delivery.nack(delay=2)

        assert api.admin.topic_resize(name, 8, wait=False).pending > 0
        topic.send("second", group=group)
        (delivery,) = consumer.receive(10, wait=10)
        assert delivery.body == "first"
        assert api.admin.topic_resize(name, 8, wait=False).pending == 1, "it is in flight"
        delivery.ack()
        assert api.admin.topic_resize(name, 8).pending == 0

        (delivery,) = consumer.receive(10, wait=10)
        assert delivery.body == "second"


@both_clients
def test_group_that_stops_during_a_resize_holds_what_is_sent_to_it_then(
    api: Any, name: str
) -> None:
    group = basis_of(5, 8)
    topic = api.topic(name, slots=2, groups=rmq.Groups(on_dead="hold"))
    topic.send("first", group=group)
    with topic.consumer() as consumer:
        (delivery,) = consumer.receive()
        api.admin.topic_resize(name, 8, wait=False)
        topic.send("second", group=group)
        delivery.reject("no such customer")

        assert api.admin.topic_resize(name, 8, wait=False).pending == 1
        assert consumer.receive(10, wait=0.2) == []
        api.admin.group_release(name, group)
        assert api.admin.topic_resize(name, 8).pending == 0

        (delivery,) = consumer.receive(10, wait=10)
        assert delivery.body == "second"


def test_fewer_slots_hold_what_is_sent_until_the_others_are_empty(api: Any, name: str) -> None:
    key = basis_of(6, 8)  # slot 2 of 4
    topic = api.topic(name, slots=8)
    topic.send("first", slot_basis=key)
    topic.send("other", slot_basis=basis_of(2, 8))

    assert api.admin.topic_resize(name, 4, wait=False).pending == 1
    topic.send("second", slot_basis=key)

    with topic.consumer() as consumer:
        assert [d.body for d in consumer.receive(10, wait=0.5)] == ["first"]
    assert drain(topic) == ["first"], "the other one waits in a slot that is held"
    assert api.admin.topic_resize(name, 4).pending == 0
    assert drain(topic) == ["other", "second"]


def test_messages_of_every_kind_keep_their_ids_and_come_once(api: Any, name: str) -> None:
    topic = api.topic(name, slots=4, retry="immediate")
    large = "x" * 100_000
    bodies = [("plain", n) for n in range(20)]
    outs = [rmq.Outgoing(list(body), slot_basis=str(body[1])) for body in bodies]
    outs += [rmq.Outgoing(["urgent", n], priority=900) for n in range(5)]
    outs += [rmq.Outgoing(["late", n], delay=2, slot_basis=str(n)) for n in range(5)]
    outs += [rmq.Outgoing(["large", large], slot_basis="large")]
    ids = [result.id for result in topic.send_many(outs)]
    with topic.consumer() as consumer:
        dead, failed, flying = consumer.receive(3, wait=5)
        dead.reject("bad")
        failed.nack()

        api.admin.topic_resize(name, 16, wait=False)

        assert [str(api.admin.get(name, one).id) for one in ids] == [str(one) for one in ids]
        flying.extend(30)
        flying.ack()
    assert api.admin.redrive(name, ids=[dead.id]).sent == 1
    found = drain(topic)
    api.admin.topic_resize(name, 16)
    found += drain(topic)
    wanted = [out.body for out in outs]
    wanted.remove(flying.body)
    assert sorted(found, key=str) == sorted(wanted, key=str)
    assert api.admin.stats(name)["records"] == 0


def test_keys_keep_their_meaning(api: Any, server: Server, name: str) -> None:
    topic = api.topic(name, slots=2, dedup_window=60)
    for n in range(20):
        topic.send(n, dedup_key=f"order-{n}")
        topic.send([n], merge_key=f"key-{n}", time_range=60)
    drain(topic)

    api.admin.topic_resize(name, 8)

    for n in range(20):
        assert topic.send(n, dedup_key=f"order-{n}").status == "duplicate"
        assert topic.send([n], merge_key=f"key-{n}", time_range=60).status == "merged"
    assert api.admin.topic_resize(name, 4, wait=False).pending == 0
    for n in range(20):
        assert topic.send(n, dedup_key=f"order-{n}").status == "duplicate"
        assert topic.send([n], merge_key=f"key-{n}", time_range=60).status == "merged"


def test_id_that_was_kept_is_sent_once_before_and_after(api: Any, name: str) -> None:
    key = basis_of(3, 4)
    topic = api.topic(name, slots=1)
    kept = [topic.new_id(key) for _ in range(2)]
    topic.send("first", id=kept[0], slot_basis=key)

    api.admin.topic_resize(name, 4, wait=False)

    assert topic.send("first", id=kept[0], slot_basis=key).status == "duplicate"
    assert topic.send("second", id=kept[1], slot_basis=key).id == kept[1]
    assert drain(topic) == ["first", "second"]
    assert topic.send("second", id=kept[1], slot_basis=key).status == "duplicate"


# What a client does with a message of another client, and the answer.
CALLS: dict[str, tuple[Callable[[Any, Any, Any], Any], Any]] = {
    "get": (lambda api, topic, sent: topic.get(sent.id).id == sent.id, True),
    "result": (lambda api, topic, sent: topic.results([sent.id])[0].place, "waiting"),
    "cancel": (lambda api, topic, sent: topic.cancel(sent.id), "cancelled"),
    "reschedule": (lambda api, topic, sent: topic.reschedule(sent.id, delay=9), "rescheduled"),
    "priority": (lambda api, topic, sent: topic.set_priority(sent.id, 70), "changed"),
    "send": (lambda api, topic, sent: topic.send(1, id=sent.id).status, "duplicate"),
    "send many": (
        lambda api, topic, sent: [
            each.status
            for each in topic.send_many(rmq.Outgoing(1, id=id) for id in (topic.new_id(), sent.id))
        ],
        ["stored", "duplicate"],
    ),
}


@both_clients
@pytest.mark.parametrize("call", CALLS)
def test_ids_of_new_slots_are_accepted_by_clients_that_opened_the_topic_before(
    api: Any, server: Server, name: str, call: str
) -> None:
    topic = api.topic(name, slots=1)
    topic.send("old")
    with rmq.Client(server.url) as other:
        other.admin.topic_resize(name, 4, wait=False)
        sent = other.topic(name).send(1, slot_basis=basis_of(3, 4))
    assert sent.slot == 3

    do, answer = CALLS[call]
    assert do(api, topic, sent) == answer


def test_receipts_of_new_slots_are_acked_by_clients_that_opened_the_topic_before(
    api: Any, server: Server, name: str
) -> None:
    topic = api.topic(name, slots=1)
    topic.open()
    with rmq.Client(server.url) as other:
        other.admin.topic_resize(name, 4)
        theirs = other.topic(name)
        theirs.send(1, slot_basis=basis_of(3, 4))
        with theirs.consumer() as holding, topic.consumer() as consumer:
            (delivery,) = holding.receive()
            assert delivery.id.slot == 3
            assert consumer.ack_receipts([delivery.receipt]) == []
    assert api.admin.stats(name)["settled"] == 1


def test_follow_ups_for_new_slots_are_sent_by_clients_that_opened_the_topic_before(
    api: Any, server: Server, name: str, clock: Clock
) -> None:
    source, target = api.topic(f"{name}-source"), api.topic(name, slots=1)
    target.open()
    with rmq.Client(server.url) as other:
        other.admin.topic_resize(name, 4, wait=False)
        other.admin.topic_pause(name, verb="send")
        theirs = other.topic(source.name)
        theirs.send(1)
        with theirs.consumer() as consumer:
            (delivery,) = consumer.receive()
            delivery.ack(then=[(name, rmq.Outgoing("next", slot_basis=basis_of(3, 4)))])
        other.admin.topic_resume(name, verb="send")
    assert api.admin.stats(source.name)["pending"] == 1

    clock.advance(60)
    sweep(api, source.name)

    assert api.admin.stats(source.name)["dead"] == 0
    assert target.consumer().receive()[0].body == "next"


def test_id_of_a_slot_that_no_resize_has_added_is_refused(api: Any, name: str) -> None:
    topic = api.topic(name, slots=1)
    id = topic.send(1).id
    body = int.from_bytes(id, "big")
    wrong = next(
        each
        for shift in range(128)
        if (each := rmq.MessageId((body ^ 1 << shift).to_bytes(16, "big"))).slot == 1
    )

    for call in (topic.get, topic.cancel, lambda id: topic.send(1, id=id)):
        with pytest.raises(rmq.InvalidValue, match="is of slot 1"):
            call(wrong)


def test_claim_keeps_its_slot(api: Any, server: Server, name: str) -> None:
    topic = api.topic(name, slots=2)
    topic.open()
    with rmq.Client(server.url) as client:
        context = client.admin._context(name)
        client._transport.run(opening.open(context, create=False))
        names = [f"billing:order-{n}".encode() for n in range(20)]
        before = [claim_flows.claim_key(context, one) for one in names]

        for slots in (8, 4):
            api.admin.topic_resize(name, slots)
            client._transport.run(opening.open(context, create=False))
            assert [claim_flows.claim_key(context, one) for one in names] == before


def test_schedules_go_on(api: Any, server: Server, name: str) -> None:
    topic = api.topic(name, slots=2)
    topic.open()
    topic.every("report", every=1, body="report").declare()

    api.admin.topic_resize(name, 4)

    raw = server.raw()
    listed: Any = raw.smembers("rmq:scheduled")
    (entry,) = [one for one in listed if one.startswith(name.encode() + b":")]
    assert entry.split(b":")[1] == raw.hget(f"rmq:{{{name}_0}}:slot", "created")
    client = rmq.Client(server.url)
    with client:
        found = client._transport.run(dispatch.read_due("rmq", [name]))
    assert [one.name for one in found] == [name]
    assert not isinstance(found[0].reply, rmq.RMQError)


def test_what_cannot_be_resized_is_refused_before_anything_changes(
    api: Any, server: Server, name: str
) -> None:
    topic = api.topic(name, slots=4)
    topic.open()
    raw = server.raw()

    def refuse(slots: int, text: str) -> None:
        before = raw.hgetall(f"rmq:{{{name}}}:topic")
        with pytest.raises(rmq.InvalidValue, match=text):
            api.admin.topic_resize(name, slots)
        assert raw.hgetall(f"rmq:{{{name}}}:topic") == before

    refuse(6, "a multiple or a divisor")
    refuse(2048, "1 to 1024|1024")
    raw.hset(f"rmq:{{{name}_2}}:slot", "audited", 1)
    refuse(8, "audited")
    raw.hdel(f"rmq:{{{name}_2}}:slot", "audited")
    api.admin.topic_set(name, limit=rmq.Rate(100, per=1))
    refuse(8, "limit")
    api.admin.topic_set(name, limit=None)
    topic.send("first", slot_basis=basis_of(1, 4))
    api.admin.topic_resize(name, 8, wait=False)
    refuse(16, "is being resized from 4 to 8")
    with pytest.raises(rmq.TopicNotFound):
        api.admin.topic_resize(f"{name}-other", 8)


@both_clients
def test_a_query_follows_a_resize_and_settles_what_it_holds_of_former_slots(
    api: Any, name: str
) -> None:
    """Batches of two slots are held while 4 slots become 16, and these 8."""
    topic = api.topic(name, slots=4)
    query = topic.query("a" * 32, "here", exact=True)
    keys = [basis_of(slot, 16) for slot in range(16)]
    seen: list[Any] = []

    def send(stage: str) -> None:
        topic.send_many([rmq.Outgoing([stage, key], slot_basis=key) for key in keys])

    def values(after: dict[int, int], upto: dict[int, int]) -> list[Any]:
        return [
            json.loads(value_of(record))
            for slot, last in upto.items()
            for block in query.read(slot, after.get(slot, 0), last)
            for record in block.records
        ]

    def sizes(before: dict[int, int], upto: dict[int, int]) -> dict[int, int]:
        return {slot: last - before.get(slot, 0) for slot, last in upto.items()}

    topic.send_many([rmq.Outgoing(["4", keys[slot]], slot_basis=keys[slot]) for slot in (1, 2)])
    ends = [{}, query.take({})]
    assert {slot for slot, last in ends[1].items() if last} == {1, 2}
    for stage, slots, awaited in (("16", 16, 2), ("8", 8, 4)):
        assert api.admin.topic_resize(name, slots, wait=False).pending == awaited
        send(stage)
        after, end = ends[-2:]
        batch = values(after, end)
        assert set(sizes(end, query.take(after)).values()) == {0}, "the same batch"
        assert values(after, end) == batch
        assert api.admin.topic_resize(name, slots, wait=False).pending == awaited, "it is held"
        newer = query.take(end)
        assert not query.settle(end, sizes(after, end)).missing
        seen += batch + values(end, newer)
        assert not query.settle(newer, sizes(end, newer)).missing
        assert api.admin.topic_resize(name, slots).pending == 0
        end = newer
        while query.wait(0.3):  # slot by slot, as signals come
            end = query.take(end)
        ends += [newer, end]
    seen += values(*ends[-2:])
    last = query.settle(ends[-1], sizes(*ends[-2:]))

    sent = [
        ["4", keys[1]],
        ["4", keys[2]],
        *([stage, key] for stage in ("16", "8") for key in keys),
    ]
    assert sorted(seen) == sorted(sent)
    assert last.missing == 0
    counts = api.admin.stats(name)
    assert (counts["records"], counts["in_flight"], counts["settled"]) == (0, 0, len(sent))
    for key in keys:
        assert [stage for stage, other in seen if other == key][-2:] == ["16", "8"]


@both_clients
def test_a_query_that_sleeps_hears_of_slots_that_a_resize_has_added(api: Any, name: str) -> None:
    topic = api.topic(name, slots=1)
    topic.open()
    query = topic.query("a" * 32, "here")
    end = query.take({})
    assert not query.wait(0.01)
    api.admin.topic_resize(name, 4)

    topic.send("x", slot_basis=basis_of(3, 4))

    assert query.wait(5)
    assert query.take(end) == {0: 0, 1: 0, 2: 0, 3: 1}


def test_dry_run_counts_and_changes_nothing(api: Any, server: Server, name: str) -> None:
    topic = api.topic(name, slots=2)
    topic.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(10)])
    before = server.raw().hgetall(f"rmq:{{{name}}}:topic")

    assert api.admin.topic_resize(name, 4, dry_run=True) == resize.ResizeResult(2, 4, 10, 0, 2)
    assert server.raw().hgetall(f"rmq:{{{name}}}:topic") == before


def test_pass_over_a_slot_begins_anew_on_a_server_that_was_restarted(
    own_server: Server, name: str
) -> None:
    """Its records have another order there: the rest of the pass would leave some of them out."""
    with rmq.Client(own_server.url) as client:
        topic = client.topic(name, slots=1)
        ids = [result.id for result in topic.send_many([rmq.Outgoing(n) for n in range(1000)])]
        client.admin.topic_resize(name, 2, wait=False)
        context = client.admin._context(name)
        client._transport.run(opening.open(context, create=False))
        keys, raw = context.slots[0], own_server.raw()
        cursor, seen, passed = b"0", 0, 0
        while passed < 500:
            reply: Any = raw.hscan(keys.records, int(cursor.partition(b".")[0]), count=10)
            raw.zrem(keys.store, *reply[1])  # they are as good as settled
            passed += len(reply[1])
            cursor, before, _ = scan_page(client, keys, cursor)
            assert before == 0
            assert cursor != b"0"
        own_server.kill()
        own_server.start()

        while True:
            cursor, before, _ = scan_page(client, keys, cursor)
            seen += before
            if cursor == b"0":
                break

        assert seen == len(ids) - passed


def scan_page(client: rmq.Client, keys: Any, cursor: bytes) -> scripts.ResizeScanReply:
    """Look at a page of a slot."""

    def flow() -> Any:
        return (yield scripts.resize_scan(keys, cursor, 10))

    found: scripts.ResizeScanReply = client._transport.run(flow())
    return found


@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2)])
def test_interrupted_anywhere_it_goes_on_when_it_is_run_again(
    server: Server, name: str, before: int, after: int
) -> None:
    with rmq.Client(server.url) as client:
        at = 0
        while True:
            each = f"{name}-{at}"
            topic = client.topic(each, slots=before)
            key = basis_of(3, 4)
            topic.send("first", slot_basis=key)
            flow = resize.topic_resize(client.admin._context(each), after, False, False, None)
            try:
                Cutting(client._transport, at).run(flow)
            except Cut:
                is_cut = True
            else:
                is_cut = False
            topic.send("second", slot_basis=key)
            client.admin.topic_resize(each, after, wait=False)
            topic.send("third", slot_basis=key)
            with topic.consumer() as consumer:
                got: list[Any] = []
                while len(got) < 3:
                    client.admin.topic_resize(each, after, wait=False)
                    batch = consumer.receive(10, wait=5)
                    assert batch
                    got += [delivery.body for delivery in batch]
                    consumer.ack(batch)
            assert got == ["first", "second", "third"], at
            assert client.admin.topic_resize(each, after).pending == 0
            assert client.admin.settings(each).slots == after
            if not is_cut:
                break
            at += 1
        assert at > 5


def bury(topic: Any, count: int) -> set[Any]:
    """Send messages to all slots, and reject them; their ids."""
    sent = topic.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(count)])
    with topic.consumer() as consumer:
        left = count
        while left:
            for delivery in consumer.receive(100, wait=5):
                delivery.reject("bad")
                left -= 1
    time.sleep(0.002)  # a job begins after the last one died
    return {result.id for result in sent}


def receive_ids(topic: Any, count: int) -> list[Any]:
    """Receive and settle so many messages."""
    found: list[Any] = []
    with topic.consumer() as consumer:
        while len(found) < count and (batch := consumer.receive(100, wait=5)):
            found += [delivery.id for delivery in batch]
            consumer.ack(batch)
    return found


def test_letters_in_the_trash_are_restored_and_redriven_after_two_resizes(
    api: Any, name: str
) -> None:
    topic = api.topic(name, slots=4)
    ids = bury(topic, 24)
    assert api.admin.purge(name, "dead", keep=3600) == 24

    for slots in (16, 8):
        assert api.admin.topic_resize(name, slots).pending == 0
        assert api.admin.stats(name)["trash"] == 24
    assert api.admin.restore(name) == 24

    assert api.admin.redrive(name).sent == 24
    found = receive_ids(topic, 24)
    assert (len(found), set(found)) == (24, ids)
    assert api.admin.stats(name)["records"] == 0


def test_job_that_runs_goes_on_over_two_resizes(api: Any, server: Server, name: str) -> None:
    topic = api.topic(name, slots=4)
    ids = bury(topic, 24)
    resized: list[int] = []

    def between_batches(done: int, of: int) -> None:
        if 0 < done < of and len(resized) < 2:
            with rmq.Client(server.url) as other:
                slots = (16, 8)[len(resized)]
                other.admin.topic_resize(name, slots, wait=False)
                resized.append(slots)
                found.extend(receive_ids(other.topic(name), done - len(found)))
                assert other.admin.topic_resize(name, slots).pending == 0

    found: list[Any] = []
    started = api.admin.job_start(name, rate=64, expected=24)
    job = api.admin.job_run(started.id, progress=between_batches)

    assert (job.state, job.done, resized) == ("done", 24, [16, 8])
    found += receive_ids(topic, 24 - len(found))
    assert (len(found), set(found)) == (24, ids)
    assert api.admin.stats(name)["records"] == 0


@both_clients
def test_worker_goes_on_over_two_resizes(scene: Scene, name: str) -> None:
    topic = scene.api.topic(name, slots=2)
    topic.open()
    seen: list[int] = []
    scene.handle(topic, lambda d: seen.append(d.body))
    with scene.working():
        for n in range(300):
            topic.send(n, slot_basis=str(n % 7))
            if n in (100, 200):
                scene.api.admin.topic_resize(name, 8 if n == 100 else 4)
        wait_for(lambda: len(seen) >= 300)
    assert sorted(seen) == list(range(300))
    assert scene.api.admin.stats(name)["records"] == 0
