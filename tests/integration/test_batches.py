"""Batches: messages that end together, and the callback that is sent then."""

from __future__ import annotations

from typing import Any

import pytest

import rmq
from rmq.errors import BatchClosed, BatchNotFound, InvalidType, InvalidValue
from rmq.features.batches import flows, members
from rmq.kernel.follow_ups import sweep
from tests.conftest import Clock
from tests.integration.driven import both_clients
from tests.integration.working import work
from tests.servers import Server


def received(topic: Any, most: int = 100) -> list[Any]:
    """Receive and ack all waiting messages. Return their bodies."""
    with topic.consumer() as consumer:
        deliveries = consumer.receive(most, wait=0.2)
        found = [(d.body, d.batch_counts) for d in deliveries]
        consumer.ack(deliveries)
        return found


@pytest.fixture
def topics(api: Any, name: str) -> tuple[Any, Any]:
    """A topic for members, and a topic for the callback, on several slots."""
    return api.topic(f"{name}-rows", slots=4, retry=rmq.Immediate()), api.topic(f"{name}-done")


def batch(api: Any, topics: tuple[Any, Any], name: str, **options: Any) -> Any:
    return api.batch(name, then=(topics[1], rmq.Outgoing("all")), **options)


@both_clients
def test_the_callback_comes_once_when_all_members_have_ended(
    api: Any, name: str, topics: tuple[Any, Any]
) -> None:
    rows, done = topics
    with batch(api, topics, name) as made:
        sent = made.send_many(rows, [rmq.Outgoing(n, headers={"n": "1"}) for n in range(10)])
        assert [each.status for each in sent] == ["stored"] * 10
        assert made.read()[:5] == (name, "open", done.name, 10, 10)
    assert made.read().state == "closed"
    assert received(done) == []
    with rows.consumer() as consumer:
        deliveries = consumer.receive(10, wait=1)
        assert [d.headers for d in deliveries] == [{"n": "1"}] * len(deliveries)
        deliveries[0].reject("no")
        consumer.ack(deliveries[1:])
        while rest := consumer.receive(10, wait=0.1):
            consumer.ack(rest)

    counts = rmq.BatchCounts(name, False, 9, 0, 1, 0, 0, 0, 0, 0)
    assert received(done) == [("all", counts)]
    state = made.read()
    assert (state.state, state.members, state.open, state.succeeded, state.dead) == (
        "done", 10, 0, 9, 1,
    )  # fmt: skip
    assert received(done) == []
    assert made.close() == "done"


@both_clients
def test_a_member_adds_members_also_after_the_close(
    api: Any, name: str, topics: tuple[Any, Any]
) -> None:
    rows, done = topics
    with batch(api, topics, name) as made:
        made.send(rows, "first")
    with rows.consumer() as consumer:
        (first,) = consumer.receive(wait=1)
        inner = getattr(first, "target", first)
        api.batch(inner).send_many(rows.name, [rmq.Outgoing("second")])
        first.ack()
        assert received(done) == []
        with pytest.raises(BatchClosed, match="is closed, so it takes no new members"):
            api.batch(inner).send(rows, "late")
        (second,) = consumer.receive(wait=1)
        second.ack()

    ((_, counts),) = received(done)
    assert counts.succeeded == 2


@both_clients
def test_a_program_that_starts_again_changes_nothing(
    api: Any, name: str, topics: tuple[Any, Any]
) -> None:
    rows, done = topics
    outs = [rmq.Outgoing(n, dedup_key=f"{name}-{n}") for n in range(4)]
    made = batch(api, topics, name)
    assert made.open() == "open"
    made.send_many(rows, outs[:3])
    with rows.consumer() as consumer:
        consumer.ack(consumer.receive(1, wait=1))

    with batch(api, topics, name) as again:
        statuses = [each.status for each in again.send_many(rows, outs)]
    assert statuses == ["duplicate"] * 3 + ["stored"]
    assert again.outside == []
    with rows.consumer() as consumer:
        while rest := consumer.receive(10, wait=0.1):
            consumer.ack(rest)

    assert [counts.succeeded for _, counts in received(done)] == [4]
    with batch(api, topics, name) as ended:
        assert [each.status for each in ended.send_many(rows, outs)] == ["duplicate"] * 4
        with pytest.raises(BatchClosed, match="is done"):
            ended.send(rows, "new")
    assert received(done) == []


@pytest.mark.parametrize("is_reported", [False, True])
@pytest.mark.parametrize("how", ["purged", "cancelled", "expired"])
def test_a_member_that_ends_before_it_is_sent_again_is_not_stored_again(
    client: rmq.Client, name: str, clock: Clock, monkeypatch: pytest.MonkeyPatch, how: str,
    is_reported: bool,
) -> None:  # fmt: skip
    rows, done = client.topic(f"{name}-rows", on_expire="drop"), client.topic(f"{name}-done")
    outs = [rmq.Outgoing(1, dedup_key="k", expires=10)]
    made = batch(client, (rows, done), name)
    made.open()
    (result,) = made.send_many(rows, outs)
    send_many = flows.sending.send_many

    def send_later(*args: Any) -> Any:
        """End the member between `batch_add` and `send`."""
        monkeypatch.setattr(flows.sending, "send_many", send_many)
        if how == "purged":
            assert client.admin.purge(rows.name, "waiting") == 1
        elif how == "cancelled":
            assert rows.cancel(result.id) == "cancelled"
        else:
            clock.advance(20)
            with rows.consumer() as consumer:
                assert consumer.receive(wait=0) == []
        if is_reported:
            swept(client, rows)
            assert made.read().open == 0
        return send_many(*args)

    monkeypatch.setattr(flows.sending, "send_many", send_later)
    assert [each.status for each in made.send_many(rows, outs)] == ["duplicate"]

    assert client.admin.stats(rows.name)["records"] == 0
    swept(client, rows)
    assert made.close() == "done"
    ((_, counts),) = received(done)
    assert getattr(counts, how) == 1
    with batch(client, (rows, done), f"{name}-2") as other:  # its key is free for other batches
        assert [each.status for each in other.send_many(rows, outs)] == ["stored"]


@both_clients
def test_a_duplicate_of_a_message_outside_is_no_member(
    api: Any, name: str, topics: tuple[Any, Any]
) -> None:
    rows, done = topics
    outside = rows.send("other", dedup_key="k")
    with batch(api, topics, name) as made:
        (result,) = made.send_many(rows, [rmq.Outgoing("mine", dedup_key="k")])
        assert (result.status, made.outside) == ("duplicate", [outside.id])
        assert made.read().members == 0
    assert [counts.succeeded for _, counts in received(done)] == [0]


@both_clients
def test_a_duplicate_from_outside_is_no_member_although_a_reply_was_lost(
    api: Any, client: rmq.Client, name: str, topics: tuple[Any, Any]
) -> None:
    rows, done = topics
    outside = rows.send("other", dedup_key="k")
    made = batch(api, topics, name)
    made.open()
    keys = made._definition.keys()
    added = flows.scripts.batch_add(keys, name, rows.name, [outside.id])
    assert client._transport.run(_one(added)).codes == "n"  # its reply is lost

    (result,) = made.send_many(rows, [rmq.Outgoing("mine", dedup_key="k")])

    assert (result.status, made.outside) == ("duplicate", [outside.id])
    assert made.read().members == 0
    assert made.close() == "done"
    assert [counts.succeeded for _, counts in received(done)] == [0]


@both_clients
def test_a_member_that_is_received_at_most_once_counts_as_handed_over(
    api: Any, name: str, topics: tuple[Any, Any]
) -> None:
    rows, done = topics
    keeping = api.topic(rows.name, results=rmq.Results(keep=60))
    with batch(api, topics, name) as made:
        made.send_many(rows, [rmq.Outgoing(n) for n in range(3)])
        made.send_many(keeping, [rmq.Outgoing(n) for n in range(3)])
    rows.send("no member")

    got = 0
    with rows.consumer(mode="at_most_once") as consumer:
        while got < 7:
            got += len(consumer.receive(10, wait=1))

    assert made.read().state == "done"
    assert [(counts.succeeded, counts.handed_over) for _, counts in received(done)] == [(0, 6)]


@pytest.mark.parametrize("how", ["result", "follow-up", "reject", "cancel"])
def test_the_end_of_a_member_is_reported_at_once_by_a_new_process(
    server: Server, client: rmq.Client, name: str, how: str
) -> None:
    rows, done = client.topic(f"{name}-rows"), client.topic(f"{name}-done")
    results = rmq.Results(keep=60) if how == "result" else None
    with batch(client, (rows, done), name) as made:
        made.send(client.topic(rows.name, results=results), 1)

    with rmq.Client(server.url) as other, other.topic(rows.name).consumer() as consumer:
        (d,) = consumer.receive(wait=1)
        if how == "reject":
            d.reject("no")
        elif how == "cancel":
            client.topic(rows.name).cancel(d.id, running=True)
            d.nack()
        else:
            d.ack(then=[rmq.Outgoing(2)] if how == "follow-up" else [])

    assert made.read().state == "done"


@both_clients
def test_members_have_the_codec_and_the_results_of_their_topic(
    api: Any, client: rmq.Client, name: str
) -> None:
    rows = api.topic(f"{name}-rows", codec="msgpack", results=rmq.Results(keep=60))
    keyless = api.topic(rows.name)  # the same topic, declared without results
    client.topic(f"{name}-done").open()
    with client.batch(name, then=(f"{name}-done", rmq.Outgoing("all"))) as made:
        made.send(rows.name, 0)
    with rows.consumer() as consumer:
        (first,) = consumer.receive(wait=1)
        # This program has not declared the topic of the callback.
        own = api.batch(getattr(first, "target", first))
        ids = [own.send(topic, 1).id for topic in (rows, keyless)]
        first.ack()
    raw = [client.admin.get(rows.name, id, raw=True) for id in ids]
    assert [each.body.body for each in raw] == [b"\x01", b"1"]
    assert [each.keeps for each in client.topic(rows.name).results(ids)] == [True, False]


@pytest.mark.parametrize(
    ("slots", "audited", "share"), [(1, False, None), (1, True, None), (4, True, "gold")]
)
def test_members_keep_the_order_of_their_group(
    server: Server, name: str, slots: int, audited: bool, share: str | None
) -> None:
    # The names of topic and batch are in a header before the group's, so long ones move the group.
    with rmq.Client(server.url, interceptors=[rmq.Audit()] if audited else []) as client:
        rows = client.topic(f"{name}-rows", slots=slots, groups=rmq.Groups())
        reports = client.topic(f"{name}-{'d' * 20}")
        with client.batch(f"{name}-b", then=(reports, rmq.Outgoing("all"))) as made:
            for keep in (None, 60):
                made.send_many(rows, [
                    rmq.Outgoing((n, keep), group=f"g{n % 2}", share_key=share, keep_result=keep)
                    for n in range(6)
                ])  # fmt: skip
        order: list[tuple[str | None, list[Any]]] = []
        with rows.consumer() as consumer:
            while deliveries := consumer.receive(100, wait=0.2):
                assert len({d.group for d in deliveries}) == len(deliveries) <= 2
                order += [(d.group, d.body) for d in deliveries]
                consumer.ack(deliveries)

        for group in range(2):
            assert [body for name_, body in order if name_ == f"g{group}"] == [
                [n, keep] for keep in (None, 60) for n in range(group, 6, 2)
            ]
        assert [counts.succeeded for _, counts in received(reports)] == [12]


@pytest.mark.parametrize("then", ["waits", "runs", "has ended", "is reported"])
def test_a_member_that_another_program_sends_meanwhile_stays_a_member(
    client: rmq.Client, name: str, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    rows, done = client.topic(f"{name}-rows"), client.topic(f"{name}-done")
    outs = [rmq.Outgoing(1, dedup_key="k")]
    made, other = (batch(client, (rows, done), name) for _ in range(2))
    assert (made.open(), other.open()) == ("open", "open")
    send_many, consumer, running = flows.sending.send_many, rows.consumer(), list[Any]()

    def send_later(*args: Any) -> Any:
        """Send between `batch_add` and `send` of the first program."""
        monkeypatch.setattr(flows.sending, "send_many", send_many)
        assert [each.status for each in other.send_many(rows, outs)] == ["stored"]
        if then != "waits":
            running.extend(consumer.receive(wait=1))
        if then == "has ended":
            monkeypatch.setattr("rmq.kernel.follow_ups.sweep.report_ends", lambda *_: iter(()))
        if then in ("has ended", "is reported"):
            running.pop().ack()
        return send_many(*args)

    monkeypatch.setattr(flows.sending, "send_many", send_later)
    assert [each.status for each in made.send_many(rows, outs)] == ["duplicate"]
    assert made.read().members == 1
    assert made.close() == ("done" if then == "is reported" else "closed")

    for d in running or consumer.receive(wait=0.1):
        d.ack()
    swept(client, rows)
    assert [counts.succeeded for _, counts in received(done)] == [1]
    consumer.close()


@both_clients
def test_a_batch_may_wait_for_its_dead_letters(
    api: Any, client: rmq.Client, name: str, topics: tuple[Any, Any]
) -> None:
    rows, done = topics
    with batch(api, topics, name, dead="wait") as made:
        made.send_many(rows, [rmq.Outgoing(n) for n in range(2)])
    with rows.consumer() as consumer:
        for d in consumer.receive(2, wait=1):
            d.reject("no")
        for d in consumer.receive(2, wait=0.2):
            d.reject("no")
    assert (made.read().open, received(done)) == (2, [])

    first, _ = api.admin.dead_letters(rows.name).messages
    api.admin.redrive(rows.name, ids=[first.id])
    received(rows)
    assert (made.read().open, made.read().succeeded) == (1, 1)
    api.admin.purge(rows.name, "dead")
    swept(client, rows)

    ((_, counts),) = received(done)
    assert (counts.succeeded, counts.purged, counts.dead) == (1, 1, 0)


def swept(client: rmq.Client, topic: Any) -> None:
    """Report what no process has reported, as consumers and servers do every few seconds."""
    own = client.topic(topic.name)
    own.open(create=False)
    client._transport.run(sweep.sweep(own._context))


@both_clients
def test_a_cancelled_batch_cancels_its_members(
    api: Any, client: rmq.Client, name: str, topics: tuple[Any, Any]
) -> None:
    rows, done = topics
    with batch(api, topics, name) as made:
        made.send_many(rows, [rmq.Outgoing(n) for n in range(5)])
        with rows.consumer() as consumer:
            running = consumer.receive(1, wait=1)
            assert made.cancel() == 5
            assert made.read().is_cancelled
            with pytest.raises(BatchClosed):
                made.send(rows, "late")
            running[0].nack()
    swept(client, rows)

    ((_, counts),) = received(done)
    assert (counts.is_cancelled, counts.cancelled) == (True, 5)


def test_members_that_redis_does_not_know_are_lost(
    client: rmq.Client, name: str, clock: Clock
) -> None:
    rows, done = client.topic(f"{name}-rows"), client.topic(f"{name}-done")
    made = client.batch(name, then=(done, rmq.Outgoing("all")), timeout=300)
    made.open()
    made.send(rows, 1)
    definition = made._definition
    lost = rows.new_id()
    command = flows.scripts.batch_add(definition.keys(), name, rows.name, [lost])
    assert client._transport.run(_one(command)).codes == "n"

    def examine() -> tuple[bool, int]:
        now_ms = client.admin.stats(done.name)["now_ms"]
        found: tuple[bool, int] = client._transport.run(members.examine(definition, now_ms))
        return found

    clock.advance(30)
    assert examine() == (False, 0)
    clock.advance(40)
    assert examine() == (False, 1)
    assert (made.read().open, made.read().lost, made.read().state) == (1, 1, "open")
    clock.advance(300)
    assert examine() == (True, 0)
    assert made.read().state == "closed"
    received(rows)
    ((_, counts),) = received(done)
    assert (counts.succeeded, counts.lost) == (1, 1)


def test_the_end_of_a_member_of_another_batch_hides_no_lost_member(
    client: rmq.Client, name: str, clock: Clock
) -> None:
    rows, done = client.topic(f"{name}-rows"), client.topic(f"{name}-done")
    first, second = (batch(client, (rows, done), f"{name}-{n}") for n in range(2))
    assert (first.open(), second.open()) == ("open", "open")
    id = rows.new_id()
    first.send(rows, 1, id=id)
    assert rows.cancel(id) == "cancelled"
    swept(client, rows)  # its end is kept for a minute
    definition = second._definition
    command = flows.scripts.batch_add(definition.keys(), second.name, rows.name, [id])
    assert client._transport.run(_one(command)).codes == "n"

    clock.advance(61)
    now_ms = client.admin.stats(done.name)["now_ms"]

    assert client._transport.run(members.examine(definition, now_ms)) == (False, 1)


@pytest.mark.parametrize("when", ["looks", "ends"])
def test_a_member_that_a_program_sends_again_meanwhile_is_not_lost(
    client: rmq.Client, name: str, clock: Clock, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """A program has died before it sent a member, and starts again while a server looks for it."""
    rows, done = client.topic(f"{name}-rows"), client.topic(f"{name}-done")
    made = batch(client, (rows, done), name)
    made.open()
    definition, id = made._definition, rows.new_id()
    command = flows.scripts.batch_add(definition.keys(), name, rows.name, [id])
    assert client._transport.run(_one(command)).codes == "n"
    clock.advance(61)

    look, batch_end = members._lost, members.scripts.batch_end

    def send() -> None:
        monkeypatch.undo()
        assert [each.status for each in made.send_many(rows, [rmq.Outgoing(1, id=id)])] == [
            "stored"
        ]

    def look_then_send(*args: Any) -> Any:
        found = yield from look(*args)
        send()
        return found

    def send_then_end(*args: Any) -> Any:
        send()
        return batch_end(*args)

    if when == "looks":
        monkeypatch.setattr(members, "_lost", look_then_send)
    else:
        monkeypatch.setattr(members.scripts, "batch_end", send_then_end)
    now_ms = client.admin.stats(done.name)["now_ms"]

    assert client._transport.run(members.examine(definition, now_ms)) == (False, 0)

    made.close()
    received(rows)
    assert [(counts.succeeded, counts.lost) for _, counts in received(done)] == [(1, 0)]


@pytest.mark.parametrize("has_keys", [False, True])
def test_a_dead_letter_that_moved_to_another_topic_is_not_lost(
    client: rmq.Client, name: str, clock: Clock, has_keys: bool
) -> None:
    rows, done = client.topic(f"{name}-rows"), client.topic(f"{name}-done")
    other = client.topic(f"{name}-other")
    other.open()
    with batch(client, (rows, done), name, dead="wait") as made:
        keys = [f"k{n}" if has_keys else None for n in range(2)]
        made.send_many(rows, [rmq.Outgoing(n, dedup_key=key) for n, key in enumerate(keys)])
    with rows.consumer() as consumer:
        for d in consumer.receive(2, wait=1):
            d.reject("no")
    client.admin.redrive(rows.name, to=other.name)

    def examine() -> tuple[bool, int]:
        clock.advance(61)
        now_ms = client.admin.stats(done.name)["now_ms"]
        found: tuple[bool, int] = client._transport.run(members.examine(made._definition, now_ms))
        return found

    assert (examine(), made.read().open) == ((False, 0), 2)
    with other.consumer() as consumer:
        consumer.receive(wait=1)[0].ack()
    assert (examine(), made.read().open) == ((False, 0), 1)
    made.cancel()
    assert examine() == (False, 1)  # an operator does not wait for it any more
    ((_, counts),) = received(done)
    assert (counts.succeeded, counts.lost) == (1, 1)


def _one(command: Any) -> Any:
    return (yield command)


@both_clients
def test_what_is_wrong_is_refused(api: Any, name: str, topics: tuple[Any, Any]) -> None:
    rows, done = topics
    with pytest.raises(BatchNotFound, match="there is no batch"):
        api.batch(name).open()
    with pytest.raises(BatchNotFound):
        api.batch(name).close()
    with pytest.raises(InvalidValue, match="name: 65 characters"):
        api.batch("x" * 65)
    with pytest.raises(InvalidValue, match="dead: 'both'"):
        api.batch(name, dead="both")
    with pytest.raises(InvalidType, match=r"then: .*give a pair"):
        api.batch(name, then=done)
    with batch(api, topics, name) as made:
        with pytest.raises(InvalidValue, match="merge_key: a member"):
            made.send(rows, 1, merge_key="k")
        with pytest.raises(InvalidValue, match="two of them have the same id"):
            made.send_many(rows, [rmq.Outgoing(1, dedup_key="k"), rmq.Outgoing(2, dedup_key="k")])
        with pytest.raises(InvalidType, match="messages: int"):
            made.send_many(rows, [7])
        with pytest.raises(InvalidType, match="topic: int"):
            made.send_many(7, [])
        with pytest.raises(InvalidValue, match="exists with dead='count'"):
            batch(api, topics, name, dead="wait").open()
        with pytest.raises(InvalidValue, match="its callback goes to topic"):
            api.batch(name, then=(rows, rmq.Outgoing(1))).open()
    rows.send("alone")
    with rows.consumer() as consumer:
        (d,) = consumer.receive(wait=1)
        with pytest.raises(InvalidValue, match="is no member of a batch"):
            api.batch(getattr(d, "target", d))
        d.ack()


@pytest.mark.parametrize("style", ["plain", "async"])
def test_a_worker_ends_a_batch_of_many_members(client: rmq.Client, name: str, style: str) -> None:
    rows = client.topic(f"{name}-rows", slots=4, results=rmq.Results(keep=60))
    done, got = client.topic(f"{name}-done"), list[Any]()

    @done.handler
    def callback(body: str, d: rmq.Delivery) -> None:
        got.append(d.batch_counts)

    if style == "plain":

        @rows.handler
        def row(number: int) -> int:
            return number

    else:

        @rows.handler
        async def row_async(number: int) -> int:
            return number

    with client.batch(name, then=(done, rmq.Outgoing("all"))) as made:
        sent = made.send_many(rows, [rmq.Outgoing(n) for n in range(500)])
    work(client, lambda: got)

    assert [counts.succeeded for counts in got] == [500]
    assert rows.result(sent[7].id).wait(0).value == 7  # members may keep their results, too


def test_the_end_of_a_member_in_a_paused_and_a_full_callback_topic_waits(
    client: rmq.Client, name: str
) -> None:
    rows, done = client.topic(f"{name}-rows"), client.topic(f"{name}-done")
    with client.batch(name, then=(done, rmq.Outgoing("all"))) as made:
        made.send(rows, 1)
    client.admin.topic_pause(done.name, verb="send")
    received(rows)
    assert made.read().state == "done"
    assert client.admin.stats(done.name)["pending"] == 1
    client.admin.topic_resume(done.name, verb="send")

    client.admin.pending_send(done.name)
    assert [counts.succeeded for _, counts in received(done)] == [1]
