"""Sends and settlings that come at once share calls, and each caller has its own answer."""

from __future__ import annotations

import asyncio
import functools
import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import rmq
from rmq.features.schedules.flows import encoded
from rmq.kernel.core.coalescer import UNSHARED_CALLS_MAX
from rmq.kernel.core.settings import Replicated
from rmq.kernel.producer import send as send_flow
from rmq.kernel.producer.encode import encode
from rmq.kernel.topic.slot_choice import slot_of
from rmq.kernel.transport.flow import coalescing
from tests.integration.crowd import END_S, MANY, Crowd, behind_a_proxy, opened
from tests.property.driver import Driver
from tests.servers import Server


@pytest.fixture(params=["sync", "async"])
def crowd(request: pytest.FixtureRequest, ours: Server) -> Iterator[Crowd]:
    driver = Driver(ours.url, request.param == "async")
    with ours.raw() as raw:
        yield Crowd(driver, raw)
    driver.close()


def sent_in_a_cut(crowd: Crowd, server: Server, name: str, **options: Any) -> list[Any]:
    """Send many at once, and lose two replies to shared calls; what each caller was told."""
    with behind_a_proxy(crowd, server, name, **options) as (proxy, cut, topic):
        cut.do(topic.send("first"))
        proxy.cut("send", skip=UNSHARED_CALLS_MAX, times=2)
        results = cut.at_once(*[functools.partial(topic.send, n) for n in range(MANY)])
        assert proxy.fired == 2
    return results


def check_own_answers(crowd: Crowd, topic: Any) -> None:
    """Each caller has the id of its own message."""
    sends = [functools.partial(topic.send, {"n": n}) for n in range(MANY)]
    results = crowd.at_once(*sends)

    assert [result.status for result in results] == ["stored"] * MANY
    assert [crowd.do(topic.get(result.id)).body["n"] for result in results] == list(range(MANY))


def test_callers_share_calls_and_each_has_its_own_answer(crowd: Crowd, name: str) -> None:
    topic = opened(crowd, name, slots=3)
    before = crowd.calls()
    crowd.at_once(*[functools.partial(topic.send, n) for n in range(MANY)])
    assert crowd.calls() - before < MANY

    check_own_answers(crowd, topic)


def test_an_answer_of_a_neighbour_is_caught(
    crowd: Crowd, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = coalescing.finish
    monkeypatch.setattr(
        coalescing, "finish", lambda callers, all: finish(callers, [*all[1:], *all[:1]])
    )

    with pytest.raises(AssertionError):
        check_own_answers(crowd, opened(crowd, name))


def test_messages_of_all_kinds_share_calls(crowd: Crowd, name: str) -> None:
    topic = opened(crowd, name, slots=2)
    options: list[dict[str, Any]] = [
        {}, {"priority": 30}, {"delay": 600}, {"headers": {"a": "b"}}, {"type": "t"},
        {"slot_basis": "s"}, {"dedup_key": "d"}, {"expires": 900},
        {"merge_key": "k", "time_range": 600, "merge": "collect"},
    ]  # fmt: skip
    given = [options[n % len(options)] for n in range(MANY)]

    results = crowd.at_once(
        *[functools.partial(topic.send, n, **each) for n, each in enumerate(given)]
    )

    statuses: dict[str, Counter[str]] = {}
    for each, result in zip(given, results, strict=True):
        statuses.setdefault(next(iter(each), ""), Counter())[result.status] += 1
        if "slot_basis" in each:
            assert result.slot == slot_of("s", 2)
    once, many = MANY // len(options), MANY // len(options) + 1
    assert statuses.pop("dedup_key") == {"stored": 1, "duplicate": once - 1}
    assert statuses.pop("merge_key") == {"stored": 1, "merged": once - 1}
    assert set(map(str, statuses.values())) <= {
        str(Counter({"stored": count})) for count in (once, many)
    }
    keyed = [r for each, r in zip(given, results, strict=True) if "dedup_key" in each]
    assert len({result.id for result in keyed}) == 1
    (merged,) = {r.into or r.id for o, r in zip(given, results, strict=True) if "merge_key" in o}
    collected = crowd.do(topic.get(merged)).body
    assert sorted(collected) == [n for n, each in enumerate(given) if "merge_key" in each]


def test_merges_into_long_lists_that_share_calls_have_their_own_answers(
    crowd: Crowd, name: str
) -> None:
    topic = opened(crowd, name, codec="bytes")
    how: dict[str, Any] = {"time_range": 600, "merge": "collect"}
    keys = [f"k{n}" for n in range(8)]
    waiting = [crowd.do(topic.send(bytes(60_000), merge_key=key, **how)).id for key in keys]
    sends = [
        functools.partial(topic.send, b"%d" % n, merge_key=keys[n % 8], **how) for n in range(MANY)
    ]

    results = crowd.at_once(*sends)

    assert [result.into for result in results] == [waiting[n % 8] for n in range(MANY)]
    for at, id in enumerate(waiting):
        bodies = crowd.do(topic.get(id)).body[1:]
        assert sorted(bodies, key=int) == [b"%d" % n for n in range(at, MANY, 8)]


def test_of_a_topic_that_fills_up_each_caller_has_the_truth(crowd: Crowd, name: str) -> None:
    topic = opened(crowd, name, max_length=10)

    results = crowd.at_once(*[functools.partial(topic.send, n) for n in range(MANY)])

    stored = [n for n, result in enumerate(results) if not isinstance(result, Exception)]
    assert len(stored) == 10
    assert {type(result) for result in results} == {rmq.SendResult, rmq.errors.QueueFull}
    assert sorted(crowd.bodies(topic)) == stored


def test_while_sends_are_paused_each_caller_is_told(crowd: Crowd, name: str) -> None:
    topic = opened(crowd, name)
    crowd.do(crowd.driver.client.admin.topic_pause(name, verb="send", why="stocktaking"))

    results = crowd.at_once(*[functools.partial(topic.send, n) for n in range(MANY)])

    assert {type(result) for result in results} == {rmq.errors.TopicPaused}
    assert all("stocktaking" in str(result) for result in results)
    assert crowd.bodies(topic) == []


def test_what_cannot_be_sent_is_refused_alone(crowd: Crowd, name: str) -> None:
    topic = opened(crowd, name, max_body=1000)
    bodies: list[Any] = [n if n % 2 else "x" * 2000 for n in range(MANY)]
    bodies[0] = object()

    results = crowd.at_once(*[functools.partial(topic.send, body) for body in bodies])

    assert isinstance(results[0], rmq.errors.EncodeError)
    assert {type(result) for result in results[2::2]} == {rmq.errors.PayloadTooLarge}
    assert sorted(crowd.bodies(topic)) == bodies[1::2]


def test_each_caller_learns_that_its_message_is_not_durable(crowd: Crowd, name: str) -> None:
    topic = opened(crowd, name)
    durability = Replicated(1, timeout=0.05)

    results = crowd.at_once(
        *[functools.partial(topic.send, n, durability=durability) for n in range(MANY)]
    )

    for n, error in enumerate(results):
        assert isinstance(error, rmq.errors.NotDurable)
        (result,) = error.results
        assert str(result.id) in str(error)
        assert crowd.do(topic.get(result.id)).body == n
    waits = crowd.raw.info("commandstats")["cmdstat_wait"]["calls"]
    assert waits < MANY


def test_interceptors_are_called_for_each_message(ours: Server, name: str) -> None:
    class Seen(rmq.Interceptor):
        def __init__(self) -> None:
            self.before: list[Any] = []
            self.after: list[Any] = []

        def before_send(self, topic: str, out: rmq.Outgoing) -> None:
            self.before.append(out.body)
            out.headers = {"n": str(out.body)}

        def after_send(self, topic: str, out: rmq.Outgoing, result: Any) -> None:
            self.after.append((out.body, result.id))

    seen = Seen()
    with rmq.Client(ours.url, interceptors=[seen]) as client:
        topic = client.topic(name)
        threads = [threading.Thread(target=topic.send, args=[n]) for n in range(MANY)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(END_S)
        assert sorted(seen.before) == sorted(body for body, _ in seen.after) == list(range(MANY))
        for body, id in seen.after:
            message = topic.get(id)
            assert message is not None
            assert (message.body, message.headers["n"]) == (body, str(body))


def test_audit_numbers_have_no_holes(crowd: Crowd, name: str, ours: Server) -> None:
    driver = Driver(ours.url, crowd.driver.loop is not None, interceptors=[rmq.Audit()])
    audited = Crowd(driver, crowd.raw)
    topic = opened(audited, name, slots=2, max_length=30)

    results = audited.at_once(*[functools.partial(topic.send, n) for n in range(MANY)])
    refused = sum(isinstance(result, rmq.errors.QueueFull) for result in results)
    driver.close()

    assert refused >= 10
    with rmq.Client(ours.url) as client:
        found = client.admin.audit(name, older_than=0)
    assert found.missing == 0
    assert found.waiting == MANY - refused


def test_a_scheduled_body_shares_no_call_with_sends_of_its_topic(ours: Server, name: str) -> None:
    """It has another codec, and no interceptors: a shared call would have those of one of them."""
    with rmq.Client(ours.url, interceptors=[rmq.Audit()]) as client:
        topic = client.topic(name)
        topic.open()
        context = topic._context

        client._transport.run(send_flow.send(encoded(context, 0), rmq.Outgoing(b"1")))
        topic.send(2)

        (coalescer,) = context.sends.values()
        assert coalescer.run.args[0] is context
    with rmq.Client(ours.url) as client:
        assert client.admin.audit(name, older_than=0).numbered == 1


def test_a_lost_reply_is_one_of_all_that_shared_the_call(
    crowd: Crowd, ours: Server, name: str
) -> None:
    results = sent_in_a_cut(crowd, ours, name, retry_for=0)

    unknown = [n for n, r in enumerate(results) if isinstance(r, rmq.errors.OutcomeUnknown)]
    assert unknown
    known = [n for n, result in enumerate(results) if isinstance(result, rmq.SendResult)]
    assert len(known) + len(unknown) == MANY
    # The server had done the work of the call: so all of them are there, and once.
    bodies = crowd.bodies(crowd.driver.client.topic(name))
    assert sorted(bodies, key=str) == sorted([*range(MANY), "first"], key=str)


def test_a_lost_reply_that_is_repeated_stores_nothing_twice(
    crowd: Crowd, ours: Server, name: str
) -> None:
    results = sent_in_a_cut(crowd, ours, name)

    assert all(isinstance(result, rmq.SendResult) for result in results)
    assert len(crowd.bodies(crowd.driver.client.topic(name))) == MANY + 1


def test_a_call_that_stands_still_keeps_no_others(crowd: Crowd, ours: Server, name: str) -> None:
    with behind_a_proxy(crowd, ours, name, timeout=30) as (proxy, held, topic):
        held.at_once(*[functools.partial(topic.send, n) for n in range(MANY)])
        ended: list[float] = []

        def timed(n: int) -> Any:
            if held.driver.loop is None:
                topic.send(n)
                return ended.append(time.monotonic())

            async def send() -> None:
                await topic.send(n)
                ended.append(time.monotonic())

            return send()

        proxy.hold("send", 12 * coalescing.WAIT_S)
        held.at_once(*[functools.partial(timed, n) for n in range(MANY)])

    # Whoever shares the held call waits for it. The others go on, long before.
    assert len(ended) == MANY
    assert max(ended) - min(ended) > 6 * coalescing.WAIT_S
    assert sum(max(ended) - each > 3 * coalescing.WAIT_S for each in ended) >= MANY // 4


def test_calls_of_one_caller_are_in_order(crowd: Crowd, name: str) -> None:
    topic = opened(crowd, name, slots=2)

    def sends(caller: int) -> Any:
        def blocking() -> None:
            for n in range(10):
                topic.send([caller, n], slot_basis=str(caller))

        async def tasks() -> None:
            for n in range(10):
                await topic.send([caller, n], slot_basis=str(caller))

        return blocking() if crowd.driver.loop is None else tasks()

    assert set(crowd.at_once(*[functools.partial(sends, n) for n in range(MANY)])) == {None}
    found: dict[int, list[int]] = {}
    for caller, n in crowd.bodies(topic):
        found.setdefault(caller, []).append(n)
    assert found == {caller: list(range(10)) for caller in range(MANY)}


def test_an_error_of_a_later_call_is_not_that_of_those_that_were_answered(
    ours: Server, name: str
) -> None:
    """A call that merges into long lists is answered in part, and another one does the rest."""
    with rmq.Client(ours.url) as client:
        topic = client.topic(name, slots=2)
        topic.open()
        names = [f"k{n}" for n in range(100)]
        keys = [key for slot in (0, 1) for key in [n for n in names if slot_of(n, 2) == slot][:3]]
        merging: dict[str, Any] = {"time_range": 600, "merge": "collect"}
        for key in keys:
            topic.send("x" * 100_000, merge_key=key, **merging)
        context = topic._context
        items = [
            encode(context, context.settings, rmq.Outgoing("y", merge_key=key, **merging))
            for key in keys
        ]
        transport: Any = client._transport
        inner, rounds = transport._pipeline, itertools.count(1)

        def refusing(commands: Any, durability: Any) -> Any:
            values, last = inner(commands, durability)
            if next(rounds) == 2:
                values[0] = rmq.errors.AccessDenied("of a test")
            return values, last

        transport._pipeline = refusing
        outcomes = transport.run(context.sends[None].run(items))

    assert [type(outcome).__name__ for outcome in outcomes] == [
        "SendResult", "SendResult", "AccessDenied", "SendResult", "SendResult", "SendResult",
    ]  # fmt: skip


# --- settling ----------------------------------------------------------------------------------


def taken(crowd: Crowd, topic: Any, count: int = MANY) -> tuple[Any, list[Any]]:
    crowd.do(topic.send_many([rmq.Outgoing(n) for n in range(count)]))
    consumer = topic.consumer()
    return consumer, crowd.do(consumer.receive(count))


@pytest.mark.parametrize("verb", ["ack", "nack", "reject", "release"])
def test_a_call_behind_one_that_settles_its_delivery_raises_already_settled(
    ours: Server, name: str, verb: str
) -> None:
    async def scene() -> list[Any]:
        async with rmq.AsyncClient(ours.url, max_connections=1) as client:
            topic = client.topic(name)
            await topic.send("x")
            async with topic.consumer() as consumer:
                (delivery,) = await consumer.receive()
                settle = functools.partial(
                    getattr(delivery, verb), *(["why"] if verb == "reject" else [])
                )
                results = await asyncio.gather(settle(), settle(), return_exceptions=True)
                assert not delivery.lost
                return list(results)

    results = asyncio.run(scene())

    assert {type(result) for result in results} == {type(None), rmq.errors.AlreadySettled}


@pytest.mark.parametrize("verb", ["ack", "nack", "extend"])
def test_a_call_raises_already_settled_before_the_one_that_settles_has_its_reply(
    ours: Server, name: str, verb: str
) -> None:
    async def scene() -> None:
        async with rmq.AsyncClient(ours.url) as client:
            topic = client.topic(name)
            await topic.send("x")
            async with topic.consumer() as consumer:
                (delivery,) = await consumer.receive()
                transport: Any = client._transport
                inner, done, may_answer = transport._command, asyncio.Event(), asyncio.Event()

                async def command(one: Any) -> Any:
                    reply = await inner(one)
                    if not done.is_set():
                        done.set()
                        await may_answer.wait()
                    return reply

                transport._command = command
                first = asyncio.create_task(delivery.ack())
                await done.wait()
                with pytest.raises(rmq.AlreadySettled):
                    await getattr(delivery, verb)()
                assert not delivery.lost
                may_answer.set()
                await first
                with pytest.raises(rmq.AlreadySettled):
                    await delivery.ack()

    asyncio.run(scene())


def test_a_close_leaves_a_delivery_to_the_call_that_is_settling_it(ours: Server, name: str) -> None:
    async def scene() -> int:
        async with rmq.AsyncClient(ours.url) as client:
            topic = client.topic(name)
            await topic.send("x")
            consumer = topic.consumer()
            (delivery,) = await consumer.receive()
            transport: Any = client._transport
            inner, done, may_answer = transport._command, asyncio.Event(), asyncio.Event()

            async def command(one: Any) -> Any:
                reply = await inner(one)
                if not done.is_set():
                    done.set()
                    await may_answer.wait()
                return reply

            transport._command = command
            ack = asyncio.create_task(delivery.ack())
            await done.wait()
            await consumer.close()
            may_answer.set()
            await ack
            return int((await client.admin.stats(name))["settled"])

    assert asyncio.run(scene()) == 1


def test_a_close_ignores_that_another_thread_settles_a_delivery_in_the_meantime(
    ours: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rmq.Client(ours.url) as client:
        topic = client.topic(name)
        topic.send("x")
        consumer = topic.consumer()
        (delivery,) = consumer.receive()
        inner = consumer._flows._build_release

        def build(*args: Any) -> Any:
            monkeypatch.setattr(consumer._flows, "_build_release", inner)
            delivery.ack()
            return inner(*args)

        monkeypatch.setattr(consumer._flows, "_build_release", build)
        consumer.close()

        assert client.admin.stats(name)["settled"] == 1


def test_a_call_raises_already_settled_though_its_reply_is_read_first(
    ours: Server, name: str
) -> None:
    async def scene() -> None:
        async with rmq.AsyncClient(ours.url) as client:
            topic = client.topic(name)
            await topic.send("x")
            async with topic.consumer() as consumer:
                (delivery,) = await consumer.receive()
                transport: Any = client._transport
                inner, calls = transport._command, itertools.count()
                settled, was_read = asyncio.Event(), asyncio.Event()

                async def command(one: Any) -> Any:
                    if next(calls):
                        reply = await inner(one)
                        settled.set()
                        await was_read.wait()
                        return reply
                    await settled.wait()
                    return await inner(one)

                transport._command = command
                first, second = (asyncio.create_task(delivery.ack()) for _ in range(2))
                with pytest.raises(rmq.AlreadySettled):
                    await first
                was_read.set()
                await second
                assert not delivery.lost

    asyncio.run(scene())


@pytest.mark.parametrize("verb", ["ack", "nack", "extend"])
def test_single_deliveries_are_settled_together(crowd: Crowd, name: str, verb: str) -> None:
    topic = opened(crowd, name, slots=2, retry="immediate")
    consumer, got = taken(crowd, topic)
    before = crowd.calls()

    assert set(crowd.at_once(*[getattr(one, verb) for one in got])) == {None}

    assert crowd.calls() - before < MANY
    stats = crowd.do(crowd.driver.client.admin.stats(name))
    found = {"ack": stats["settled"], "nack": stats["returned"], "extend": stats["in_flight"]}
    assert found[verb] == MANY
    crowd.do(consumer.close())


def test_each_failed_delivery_keeps_its_own_error(crowd: Crowd, name: str) -> None:
    topic = opened(crowd, name, max_retries=0)
    consumer, got = taken(crowd, topic)

    crowd.at_once(*[functools.partial(one.nack, error=f"error {one.body}") for one in got])

    letters = crowd.do(crowd.driver.client.admin.dead_letters(name, limit=MANY)).messages
    assert len(letters) == MANY
    assert all(letter.failure.error == f"error {letter.body}" for letter in letters)
    crowd.do(consumer.close())


def test_what_cannot_be_settled_is_refused_alone(crowd: Crowd, name: str) -> None:
    topic = opened(crowd, name)
    consumer, got = taken(crowd, topic)
    crowd.do(got[0].ack())  # settled before
    crowd.do(topic.consumer().ack_receipts([got[1].receipt]))  # as another process does

    results = crowd.at_once(*[one.ack for one in (*got, got[2])])

    assert isinstance(results[0], rmq.errors.AlreadySettled)
    assert isinstance(results[1], rmq.errors.LeaseLost)
    assert {type(result) for result in results[3:MANY]} == {type(None)}
    # Of two that settle one delivery at once, one is told: by its own call, or before it.
    (told,) = [results[n] for n in (2, MANY) if results[n] is not None]
    assert isinstance(told, rmq.errors.AlreadySettled | rmq.errors.LeaseLost)
    assert crowd.do(crowd.driver.client.admin.stats(name))["settled"] == MANY
    crowd.do(consumer.close())


def test_acks_whose_reply_is_lost_succeed_when_repeated(
    crowd: Crowd, ours: Server, name: str
) -> None:
    with behind_a_proxy(crowd, ours, name, retry_for=0) as (proxy, cut, topic):
        consumer, got = taken(cut, topic)
        proxy.cut("ack", skip=UNSHARED_CALLS_MAX, times=2)

        results = cut.at_once(*[one.ack for one in got])
        unknown = [one for one, r in zip(got, results, strict=True) if r is not None]
        again = cut.at_once(*[one.ack for one in unknown])
        fired = proxy.fired
        cut.do(consumer.close())

    assert fired == 2
    assert {type(r) for r in results if r is not None} == {rmq.errors.OutcomeUnknown}
    assert set(again) == {None}
    assert crowd.do(crowd.driver.client.admin.stats(name))["settled"] == MANY


def test_no_turn_is_lost(crowd: Crowd, name: str) -> None:
    topic = opened(crowd, name, max_length=20)
    for _ in range(3):
        crowd.at_once(*[functools.partial(topic.send, n) for n in range(MANY)])

    coalescer = topic._context.sends[None]
    assert len(coalescer.permits) == 0
    assert not coalescer.waiting
