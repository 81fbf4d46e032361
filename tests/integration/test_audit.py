"""The loss audit: exactly what was lost is reported, and nothing that was not."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from datetime import timedelta

import pytest

import rmq
from rmq.features.audit import flows as audit_flow
from rmq.features.audit.scripts import AuditScanPage
from tests.integration.auditing import adds_up, keys_of, lose, lost, producer
from tests.integration.driven import both_clients
from tests.patience import wait_for


def audited(client, name, **options):
    return client.admin.audit(name, **{"older_than": 0} | options)


@pytest.mark.parametrize("seed", range(2))
@both_clients
def test_exactly_the_messages_that_were_deleted_are_reported(kind, server, raw, client, name, seed):
    chance = random.Random(seed)
    count, k = chance.randrange(40, 300), chance.randrange(1, 21)
    with producer(kind, server) as theirs:
        topic = theirs.topic(name, slots=3, max_retries=0, retry="immediate")
        ids = [topic.send(n, priority=chance.randrange(20, 90)).id for n in range(count // 2)]
        ids += [
            one.id for one in topic.send_many([rmq.Outgoing(n) for n in range(count - len(ids))])
        ]
    with client.topic(name).consumer() as consumer:
        taken = consumer.receive(count // 3)
        for one in taken[::3]:
            one.ack()
        for one in taken[1::3]:
            one.reject("why")
        newest = [id for id in ids[-3:] if client.admin.get(name, id)]
        alive = [id for id in ids if client.admin.get(name, id)]
        assert adds_up(audited(client, name))
        assert audited(client, name).missing == 0

        gone = set(chance.sample(alive, k)) | set(newest[: chance.randrange(3)])
        expected = {lose(raw, name, id) for id in gone}
        found = audited(client, name)

        assert lost(found) == expected
        assert found.missing == len(gone)
        assert adds_up(found)
        assert {id for id in ids if client.admin.get(name, id)} == set(alive) - gone


@pytest.mark.parametrize("place", ["store", "prepare", "dead"])
def test_it_is_missing_wherever_it_was(kind, server, raw, client, name, place):
    with producer(kind, server) as theirs:
        id = theirs.topic(name).send("a").id
    with client.topic(name).consumer() as consumer:
        if place != "store":
            (one,) = consumer.receive()
        if place == "dead":
            one.reject("why")
        number = lose(raw, name, id)

    assert lost(audited(client, name)) == {number}


@pytest.mark.parametrize("part", ["queue", "record"])
def test_half_of_a_message_is_lost_as_well(kind, server, raw, client, name, part):
    with producer(kind, server) as theirs:
        id = theirs.topic(name).send("a").id
    keys = keys_of(name, 0)
    raw.zrem(keys.store, id.member) if part == "queue" else raw.hdel(keys.records, id.member)

    assert audited(client, name).missing == 1


def test_lost_message_is_not_reported_where_nobody_numbers(api, raw, client, name):
    """Negative control: it is the numbers that tell."""
    id = api.topic(name).send("a").id
    keys = keys_of(name, 0)
    raw.zrem(keys.store, id.member)
    raw.hdel(keys.records, id.member)

    found = audited(client, name)

    assert found == (name, 0, 0, 0, 0, 0, 0, 0, 0, [])


def test_what_is_younger_than_the_threshold_is_not_reported(kind, server, raw, client, name):
    with producer(kind, server) as theirs:
        id = theirs.topic(name).send("a").id
    lose(raw, name, id)

    assert client.admin.audit(name).missing == 0
    assert audited(client, name, older_than=timedelta(seconds=30)).missing == 0
    time.sleep(0.05)
    assert audited(client, name, older_than=0.02).missing == 1


def test_what_is_forgotten_is_not_reported_again(kind, server, raw, client, name):
    with producer(kind, server) as theirs:
        topic = theirs.topic(name)
        ids = [topic.send(n).id for n in range(5)]
        for id in ids[1:4]:
            lose(raw, name, id)

    assert audited(client, name, forget=True).missing == 3
    assert audited(client, name).missing == 0
    lose(raw, name, ids[4])
    assert audited(client, name).missing == 1


def test_missing_topic_is_an_error(api, name):
    with pytest.raises(rmq.TopicNotFound):
        api.admin.audit(name)
    with pytest.raises(rmq.InvalidValue, match="older_than"):
        api.admin.audit(name, older_than=-1)


@both_clients
def test_both_admins_find_the_same(kind, server, raw, api, client, name):
    with producer(kind, server) as theirs:
        topic = theirs.topic(name, slots=2)
        ids = [one.id for one in topic.send_many([rmq.Outgoing(n) for n in range(300)])]
    for id in ids[7:12]:
        lose(raw, name, id)
    moved = []

    found = audited(api, name, progress=lambda done, whole: moved.append((done, whole)))

    assert found == audited(client, name)
    assert found.missing == 5
    assert str(found.lost[0]).endswith("8-12 (slot 0)") or str(found.lost[0]).endswith(" (slot 1)")
    assert moved[-1][0] >= 295


def test_failover_that_lost_the_last_writes_is_noticed(kind, server, raw, client, name):
    with producer(kind, server) as theirs:
        topic = theirs.topic(name)
        for n in range(5):
            topic.send(n)
        saved = {key: raw.dump(key) for key in raw.keys(f"rmq:{{{name}_0}}:*")}
        for n in range(4):
            topic.send(n)
        for key, value in saved.items():
            raw.restore(key, 0, value, replace=True)
        topic.send("after")

    found = audited(client, name)

    assert found.missing == 4
    assert [(one.first, one.last) for one in found.lost] == [(6, 9)]


def test_last_messages_of_an_idle_producer_are_watched(server, raw, client, name):
    with rmq.Client(server.url, interceptors=[rmq.Audit()]) as theirs:
        id = theirs.topic(name).send("a").id
        number = lose(raw, name, id)
        wait_for(lambda: audited(client, name).missing)

        assert lost(audited(client, name)) == {number}


async def test_last_messages_of_an_idle_async_producer_are_watched(server, raw, client, name):
    async with rmq.AsyncClient(server.url, interceptors=[rmq.Audit()]) as theirs:
        id = (await theirs.topic(name).send("a")).id
        number = lose(raw, name, id)
        found = await theirs.admin.audit(name, older_than=0)
        until = time.monotonic() + 60
        while not found.missing and time.monotonic() < until:
            await asyncio.sleep(0.05)
            found = await theirs.admin.audit(name, older_than=0)

        assert lost(found) == {number}


def test_producer_tells_again_once_redis_is_back(own_server, name):
    server = own_server
    with rmq.Client(server.url, retry_for=0.1, interceptors=[rmq.Audit()]) as theirs:
        topic = theirs.topic(name)
        topic.send("a")
        server.kill()
        time.sleep(1.5)
        server.start()
        wait_for(lambda: theirs.admin.audit(name, older_than=0).numbered)
        found = theirs.admin.audit(name, older_than=0)

        assert (found.numbered, found.waiting, found.missing) == (1, 1, 0)


def test_threads_forks_and_clients_are_different_producers(server, client, name):
    with rmq.Client(server.url, interceptors=[rmq.Audit()]) as theirs:
        topic = theirs.topic(name, slots=2)
        topic.send("first")

        def work() -> None:
            for n in range(50):
                topic.send(n)
                theirs.topic(name).send_many([rmq.Outgoing(n), rmq.Outgoing(n, slot_basis="a")])

        threads = [threading.Thread(target=work) for _ in range(4)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        child = os.fork()
        if not child:
            try:
                topic.send("child")
                theirs.close()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        with rmq.Client(server.url, interceptors=[rmq.Audit()]) as other:
            other.topic(name).send("other")

    found = audited(client, name)

    assert (found.producers, found.numbered, found.missing) == (3, 603, 0)
    assert adds_up(found)


@both_clients
def test_message_with_headers_and_its_own_id_carries_both(kind, server, client, name):
    with producer(kind, server) as theirs:
        topic = theirs.topic(name)
        id = topic.new_id()
        out = rmq.Outgoing("a", headers={"a": "b"}, id=id, delay=0.001, expires=60)
        (result,) = topic.send_many([out])
        time.sleep(0.01)
        with topic.consumer() as consumer:
            (one,) = consumer.receive(wait=2)
            assert (one.id, one.body, dict(one.headers)) == (id, "a", {"a": "b"})
            assert one.marks["rmq-audit"].endswith(".1")
            one.ack()
    assert result.status == "stored"
    assert out.marks is None
    assert adds_up(audited(client, name))


def read_with_restart(client, name, own_server, is_anew):
    """Audit a topic of one slot whose server restarts after the first page; count the pages."""
    flow, reply, pages = audit_flow.audit(client.admin._context(name), 0), None, 0
    while True:
        try:
            step = flow.send(reply)
        except StopIteration as end:
            return end.value, pages
        reply = client._transport.run(one_step(step))
        if isinstance(reply, AuditScanPage):
            pages += 1
            if pages == 1:
                assert reply.cursor != b"0"
                own_server.kill()
                own_server.start()
            if (
                not is_anew and reply.cursor != b"0"
            ):  # as the cursor of a script that does not name its server
                _, dot, server = reply.cursor.partition(b".")
                now = own_server.raw().info("server")["run_id"].encode()
                reply = reply._replace(
                    cursor=reply.cursor.replace(dot + server, b"." + now), is_first=pages == 1
                )


def one_step(step):
    return (yield step)


@pytest.mark.parametrize("is_anew", [True, False], ids=["named", "control"])
def test_a_restart_while_records_are_read_makes_no_number_missing(own_server, name, is_anew):
    """On a server that was restarted, records have another order; the control ignores that."""
    with producer("sync", own_server) as theirs:
        theirs.topic(name).send_many([rmq.Outgoing(n) for n in range(3000)])
    with rmq.Client(own_server.url, retry_for=10) as client:
        assert client.admin.audit(name, older_than=0).numbered == 3000

        found, pages = read_with_restart(client, name, own_server, is_anew)

        assert pages > 2
        assert bool(found.missing) is not is_anew
        if is_anew:
            assert found.waiting == 3000
