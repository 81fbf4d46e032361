"""A message is handed over to a consumer that is stopped, killed, or cut off at that moment."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

import rmq
from bench.soak.proxy import between
from rmq.kernel.consumer import hand_over, receive
from rmq.kernel.consumer.state import ReceiveState
from rmq.kernel.transport.flow.steps import AwaitSignal, Command, Flow, Step
from rmq.kernel.transport.lua import script_loader
from rmq.kernel.transport.single.blocking import InterruptibleReader
from tests.faults.child import running, wait_for_lines
from tests.forkserver import Forked
from tests.integration.driven import connect
from tests.integration.test_hand_over import credits_in, leave_a_credit
from tests.lua.crediting import break_script
from tests.patience import PATIENCE_S, wait_for
from tests.servers import Server

LIMIT = 8


@pytest.fixture
def topic(client: rmq.Client, name: str) -> rmq.Topic:
    made = client.topic(name, retry="immediate")
    made.open()
    return made


def received(topic: rmq.Topic, wait: float = PATIENCE_S) -> list[tuple[int, int]]:
    """Receive with another consumer; numbers and attempts."""
    with topic.consumer() as consumer:
        deliveries = consumer.receive(10, wait=wait)
        consumer.ack(deliveries)
        return [(delivery.body["n"], delivery.attempt) for delivery in deliveries]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def sleeper(server: Server, topic: rmq.Topic, log: Path) -> Iterator[Forked]:
    """A consumer in a process of its own, which has left its credit."""
    with running("wait", server.url, topic.name, log) as child:
        wait_for(lambda: credits_in(server, topic.name) == [1])
        yield child


def test_a_message_for_a_stopped_consumer_comes_back_with_its_lease(
    client: rmq.Client, topic: rmq.Topic, sleeper: Forked, log: Path
) -> None:
    sleeper.send_signal(signal.SIGSTOP)
    topic.send({"n": 1})  # its connection is still counted
    assert client.admin.stats(topic.name)["in_flight"] == 1
    topic.send({"n": 2})  # one credit holds one hand-over

    assert received(topic) == [(2, 1)]
    assert received(topic) == [(1, 2)]

    sleeper.send_signal(signal.SIGCONT)
    topic.send({"n": 3})
    assert wait_for_lines(log, "deliver") == [["deliver", "3", "1"]]  # and not the first
    wait_for(lambda: client.admin.stats(topic.name)["settled"] == 3)


def test_a_message_for_a_consumer_that_was_stopped_for_a_moment_is_not_lost(
    topic: rmq.Topic, sleeper: Forked, log: Path
) -> None:
    sleeper.send_signal(signal.SIGSTOP)
    topic.send({"n": 1})
    time.sleep(1.2)  # longer than to its next poll
    sleeper.send_signal(signal.SIGCONT)

    assert wait_for_lines(log, "deliver") == [["deliver", "1", "1"]]


def test_a_message_for_a_killed_consumer_waits_for_another(
    server: Server, topic: rmq.Topic, sleeper: Forked
) -> None:
    sleeper.kill()
    sleeper.wait()
    with server.raw() as raw:
        wait_for(lambda: not raw.pubsub_channels(f"*{topic.name}*"))

    topic.send({"n": 1})

    assert received(topic) == [(1, 1)]
    assert credits_in(server, topic.name) == [0]


@pytest.mark.parametrize(("kind", "skip"), [("sync", 0), ("sync", 1), ("async", 1)])
@pytest.mark.parametrize("fault", ["cut", "hold"])
@pytest.mark.parametrize("verb", ["prepare", "withdraw", "release"])
def test_lost_and_late_replies_around_credits_lose_no_message_and_no_retry(
    server: Server, topic: rmq.Topic, kind: str, fault: str, verb: str, skip: int
) -> None:
    with server.raw() as raw:
        for script in script_loader.names():
            raw.script_load(script_loader.load(script).text)
    got: list[tuple[int, int]] = []
    over = threading.Event()

    def consume(url: str) -> None:
        with (
            connect(kind, url, retry_for=5, timeout=0.3) as one,
            one.topic(topic.name).consumer() as consumer,
        ):
            while not over.is_set():
                try:
                    deliveries = consumer.receive(1, wait=0.1)
                    got.extend((one.body["n"], one.attempt) for one in deliveries)
                    consumer.ack(deliveries)
                except rmq.OutcomeUnknown:
                    continue

    with between(server.port) as proxy:
        if fault == "cut":
            proxy.cut(verb, skip=skip)
        else:
            proxy.hold(verb, 0.5, skip=skip)  # longer than its sender waits
        thread = threading.Thread(target=consume, args=(proxy.url,), daemon=True)
        thread.start()
        for number in range(20):
            topic.send({"n": number})
            time.sleep(0.04 if number % 3 else 0.11)
        wait_for(lambda: len(got) >= 20)
        over.set()
        thread.join(PATIENCE_S)

    assert sorted(got) == [(number, 1) for number in range(20)]
    assert credits_in(server, topic.name) == [0]


@contextmanager
def listening(topic: rmq.Topic, hand_overs: int) -> Iterator[tuple[ReceiveState, Any]]:
    """A consumer that listens all the time, as a worker does, and what runs its flows."""
    with topic.consumer() as consumer:
        state, until = consumer._flows.state, time.monotonic() + PATIENCE_S
        while not state.subscription.own_channel:  # until it is subscribed
            assert time.monotonic() < until, "it does not subscribe"
            assert consumer.receive(1, wait=0.06) == []
        state.credits.hand_overs = hand_overs
        state.until, state.ready_at = time.monotonic() + PATIENCE_S, [0.0]
        yield state, consumer._transport.run


def handed_over(state: ReceiveState) -> list[bytes]:
    """The hand-overs that have arrived. Numbers arrive on the same channel."""
    return [payload for payload in state.subscription.payloads if not payload.isdigit()]


@pytest.mark.parametrize("hand_overs", [1, 4])
def test_a_message_that_is_heard_before_the_take_of_its_credit_is_answered_is_given_once(
    topic: rmq.Topic, client: rmq.Client, hand_overs: int
) -> None:
    """As in a worker, which listens on while it waits before it takes again."""
    with listening(topic, hand_overs) as (state, run):
        without_reply = receive.receive_ready(state, LIMIT)
        run(_once(next(without_reply)))
        with pytest.raises(rmq.OutcomeUnknown):
            without_reply.throw(rmq.OutcomeUnknown("cut"))
        topic.send("x")
        assert client.admin.stats(topic.name)["in_flight"] == 1
        while not handed_over(state):
            run(_once(AwaitSignal(state.subscription, PATIENCE_S)))

        given = run(receive.receive_handed_over(state))
        state.ready_at = [0.0]
        given += run(receive.receive_ready(state, LIMIT))

        assert [len(batch.ids) for _, batch in given] == [1]
        assert client.admin.stats(topic.name)["in_flight"] == 1


@pytest.mark.parametrize("heard", [0, 1, 2, 3])
def test_hand_overs_of_one_credit_that_were_not_heard_cost_no_retry(
    server: Server, topic: rmq.Topic, client: rmq.Client, heard: int
) -> None:
    with listening(topic, 4) as (state, run):
        assert run(receive.receive_ready(state, LIMIT)) == []
        for number in range(3):
            topic.send({"n": number})
        assert client.admin.stats(topic.name)["in_flight"] == 3
        while len(handed_over(state)) < 3:
            run(_once(AwaitSignal(state.subscription, PATIENCE_S)))
        state.subscription.payloads = handed_over(state)[:heard]  # the connection died
        state.subscription.must_reconnect = state.credits.in_doubt = True

        given = run(receive.receive_handed_over(state))
        state.ready_at = [0.0]
        again = run(receive.receive_ready(state, LIMIT))

        taken = [sum(len(batch.ids) for _, batch in part) for part in (given, again)]
        assert taken == [heard, 3 - heard]
        assert client.admin.stats(topic.name)["in_flight"] == 3
        assert not any(batch.retries_left for _, batch in again)  # none of them failed
        assert credits_in(server, topic.name) == [0]


def test_what_a_take_took_whose_master_was_away_is_taken_when_it_is_back(
    topic: rmq.Topic, client: rmq.Client
) -> None:
    """Even if nothing is sent any more: a slot with messages in flight has no work to tell of."""
    with listening(topic, 1) as (state, run):
        topic.send("x")
        away = rmq.OutcomeUnknown("the master stands still")
        away._repeat_for = PATIENCE_S
        without_reply = receive.receive_ready(state, LIMIT)
        run(_once(next(without_reply)))
        with pytest.raises(StopIteration) as end:
            without_reply.throw(away)
        assert end.value.value == []
        assert client.admin.stats(topic.name)["in_flight"] == 1

        state.ready_at = [0.0]
        given = run(receive.receive_ready(state, LIMIT))

        assert [len(batch.ids) for _, batch in given] == [1]
        assert not any(batch.retries_left for _, batch in given)  # it costs no retry
        assert not state.must_hand_back


def test_what_was_handed_over_to_a_workers_connection_that_died_comes_soon(
    server: Server, client: rmq.Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before another message comes, and long before its lease ends."""
    topic = client.topic(name, lease=20 * PATIENCE_S)
    topic.open()
    ran: list[tuple[str, int]] = []
    dies = threading.Event()
    read = InterruptibleReader.read

    def read_unless_it_dies(self: InterruptibleReader, seconds: float) -> Any:
        reply = read(self, seconds)
        if dies.is_set() and isinstance(reply, list) and b"last" in reply[2]:
            dies.clear()
            raise redis.ConnectionError("cut")
        return reply

    monkeypatch.setattr(InterruptibleReader, "read", read_unless_it_dies)

    @topic.handler()
    def note(delivery: rmq.Delivery) -> None:
        ran.append((delivery.body, delivery.attempt))

    with rmq.Worker(client, heartbeat="thread"):
        leave_a_credit(server, topic, ran)
        warm = len(ran)
        dies.set()
        topic.send("last")
        wait_for(lambda: len(ran) > warm)

    assert not dies.is_set(), "it was not handed over: this has shown nothing"
    assert ran[warm:] == [("last", 1)]


def test_a_hand_over_that_a_look_tells_of_and_that_does_not_come_is_recovered(
    topic: rmq.Topic, client: rmq.Client
) -> None:
    check_that_a_lost_hand_over_is_recovered(topic, client)


def check_that_a_lost_hand_over_is_recovered(topic: rmq.Topic, client: rmq.Client) -> None:
    """Of a credit for four, one is used, and what was published is lost on its way."""
    with listening(topic, 4) as (state, run):
        assert run(receive.receive_ready(state, LIMIT)) == []
        topic.send("lost")
        while not handed_over(state):
            run(_once(AwaitSignal(state.subscription, PATIENCE_S)))
        for payload in handed_over(state):
            state.subscription.payloads.remove(payload)
        assert run(receive.receive_handed_over(state)) == []

        def look() -> Any:
            state.ready_at = [0.0]
            return run(receive.receive_ready(state, LIMIT))

        assert look() == []
        assert not state.credits.in_doubt  # it may just be on its way
        time.sleep(hand_over.OFFER_TIMEOUT_S + 0.1)
        given = look() or look()

        assert state.subscription.must_reconnect  # and is made anew
        assert [len(batch.ids) for _, batch in given] == [1]
        assert not any(batch.retries_left for _, batch in given)  # it costs no retry
        assert client.admin.stats(topic.name)["in_flight"] == 1


def test_control_a_consumer_that_does_not_count_what_was_handed_over_waits_for_the_lease(
    topic: rmq.Topic, client: rmq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken on purpose: that the credit stands is all it reads."""
    note = hand_over.Credits.note

    def note_carelessly(credits: Any, state: Any, offer: Any, slot: int, credit: Any) -> None:
        note(credits, state, offer, slot, credit._replace(left=4) if credit.is_valid else credit)

    monkeypatch.setattr(hand_over.Credits, "note", note_carelessly)

    with pytest.raises(AssertionError):
        check_that_a_lost_hand_over_is_recovered(topic, client)


@pytest.mark.parametrize("hand_overs", [1, 4])
@pytest.mark.parametrize("sent", [0, 1, 2, 3])
def test_a_take_that_its_connection_repeats_forgets_no_hand_over(
    server: Server, topic: rmq.Topic, client: rmq.Client, hand_overs: int, sent: int
) -> None:
    check_that_a_repeated_take_forgets_nothing(server, topic, client, hand_overs, sent)


def check_that_a_repeated_take_forgets_nothing(
    server: Server, topic: rmq.Topic, client: rmq.Client, hand_overs: int, sent: int,
    patience_s: float = PATIENCE_S,
) -> None:  # fmt: skip
    """The reply is lost, messages are handed over, and the connection repeats the take."""
    with listening(topic, hand_overs) as (state, run):
        flow = receive.receive_ready(state, LIMIT)
        take = next(flow)
        assert isinstance(take, Command)
        run(_once(take))
        assert credits_in(server, topic.name) == [1]
        for number in range(sent):
            topic.send({"n": number})
        topic.send({"n": "later"}, delay=0.2)

        given = _go_on(flow, run, run(_once(take.as_repeat())))
        until = time.monotonic() + patience_s
        while sum(len(batch.ids) for _, batch in given) <= sent and time.monotonic() < until:
            state.ready_at = [0.0]
            given += run(receive.receive_ready(state, LIMIT))
            run(_once(AwaitSignal(state.subscription, 0.05)))
            given += run(receive.receive_handed_over(state))

        ids = [id for _, batch in given for id in batch.ids]
        assert len(ids) == len(set(ids)) == sent + 1
        assert not any(batch.retries_left.strip(b"\x10") for _, batch in given)  # no retry is spent
        assert client.admin.stats(topic.name)["in_flight"] == sent + 1


def test_control_a_repeated_take_that_leaves_its_credit_forgets_hand_overs(
    server: Server, topic: rmq.Topic, client: rmq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken on purpose: what the repetition removes the credit for."""
    break_script(monkeypatch, "prepare", "if is_repeated and offer then", "if false then")

    with pytest.raises(AssertionError):
        check_that_a_repeated_take_forgets_nothing(server, topic, client, 4, 2, patience_s=3.0)


def test_what_a_cancelled_call_left_is_not_handed_back_while_the_next_call_takes(
    topic: rmq.Topic, client: rmq.Client
) -> None:
    check_that_a_take_under_way_is_left_alone(topic, client, receive.hand_back_later)


def check_that_a_take_under_way_is_left_alone(
    topic: rmq.Topic, client: rmq.Client, hand_back: Any
) -> None:
    with listening(topic, 1) as (state, run):
        topic.send({"n": 1})
        permit = state.receiving.acquire()
        assert permit is not None
        flow = receive.receive_ready(state, LIMIT)
        take = next(flow)
        run(hand_back(state))  # in a task of its own, while the take is on its way
        given = _go_on(flow, run, run(_once(take)))
        permit.free()

        assert [len([id for id in batch.ids if id]) for _, batch in given] == [1]
        assert client.admin.stats(topic.name)["in_flight"] == 1


def test_control_a_take_under_way_that_is_handed_back_is_somebody_else_s(
    topic: rmq.Topic, client: rmq.Client
) -> None:
    """Broken on purpose: what the look at the lock is for."""
    with pytest.raises((AssertionError, rmq.ScriptFailed)):
        check_that_a_take_under_way_is_left_alone(topic, client, receive.hand_back)


def _go_on(flow: Flow[Any], run: Any, value: Any) -> Any:
    """Run a flow to its end, from the value of the step where it is."""
    try:
        while True:
            value = run(_once(flow.send(value)))
    except StopIteration as stop:
        return stop.value


def _once(step: Step) -> Flow[Any]:
    return (yield step)


def test_control_a_consumer_that_leaves_its_credit_has_a_message_in_its_socket(
    server: Server, client: rmq.Client, topic: rmq.Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken on purpose: what the withdrawal is for."""

    def no_collect(*_: Any) -> Any:
        return
        yield

    monkeypatch.setattr(receive, "_collect", no_collect)
    consumer = topic.consumer()
    until = time.monotonic() + PATIENCE_S
    while credits_in(server, topic.name) != [1]:
        assert time.monotonic() < until, "it leaves no credit"
        consumer.receive(1, wait=0.1)

    topic.send({"n": 1})

    assert received(topic, wait=0.3) == []  # nobody gets it, and its consumer does something else
    assert client.admin.stats(topic.name)["in_flight"] == 1
    monkeypatch.undo()
    consumer.close()
    assert received(topic) == [(1, 1)]
