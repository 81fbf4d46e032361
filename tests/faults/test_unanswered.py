"""A reply that does not come for longer than the client's patience: the caller lives, and goes on.

Each fault comes in two kinds: the server did the work and the reply was lost, or the command never
arrived. The caller cannot tell them apart, and what it does next must be right for both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import rmq
from rmq.kernel.consumer import receive
from rmq.kernel.transport.lua import script_loader
from tests.exchanges import change_exchanges
from tests.property.driver import Driver
from tests.servers import Server

MODES = ("at_least_once", "at_most_once")
# The flows are those of both clients. These tests show that each of the two carries on with them.
both_clients = pytest.mark.parametrize("driver", ["sync", "async"], indirect=True)


class Odd:
    """A codec that nobody else has."""

    name, number = "odd", 4

    def encode(self, value: Any) -> bytes:
        return b"?"

    def decode(self, data: bytes) -> Any:
        raise rmq.DecodeError("odd")


class Scene:
    """A client without patience, whose connection fails at the calls of one script."""

    def __init__(self, driver: Driver, beside: rmq.Client, name: str, executed: bool) -> None:
        self.driver, self.beside, self.name, self.executed = driver, beside, name, executed
        self.do = driver.do
        self.fired = 0
        self.error: type[BaseException] = ConnectionResetError
        self._verb, self._times = "", 0
        losing = self._losing if driver.loop is None else self._losing_async
        change_exchanges(driver.client._transport, losing)
        self.open()

    def _losing(self, inner: Any) -> Any:
        def exchange(packed: bytes, count: int, late: bool = False) -> Any:
            if self._due(packed):
                if self.executed:
                    inner(packed, count, late)
                raise self.error
            return inner(packed, count, late)

        return exchange

    def _losing_async(self, inner: Any) -> Any:
        async def exchange(packed: bytes, count: int, late: bool = False) -> Any:
            if self._due(packed):
                if self.executed:
                    await inner(packed, count, late)
                raise self.error
            return await inner(packed, count, late)

        return exchange

    def open(self, **settings: Any) -> None:
        """A topic that the server knows all scripts for."""
        self.topic: Any = self.driver.client.topic(self.name, **settings)
        self.do(self.topic.open())

    def _due(self, packed: bytes) -> bool:
        if not self._times or script_loader.load(self._verb).sha.encode() not in packed:
            return False
        self._times -= 1
        self.fired += 1
        return True

    def lose(self, verb: str, times: int = 1) -> None:
        """Lose the next calls of a script."""
        self._verb, self._times = verb, times

    def send(self, count: int) -> None:
        self.do(self.topic.send_many([rmq.Outgoing(n) for n in range(count)]))

    def stats(self) -> dict[str, int]:
        return self.beside.admin.stats(self.name)

    def all_of(self, consumer: Any, most: int = 5) -> list[tuple[Any, int]]:
        """Receive and ack until the topic is empty; return body and attempt of each."""
        seen = []
        while got := self.do(consumer.receive(most)):
            seen += [(one.body, one.attempt) for one in got]
            self.do(consumer.ack(got))
        return seen


@pytest.fixture
def driver(request: pytest.FixtureRequest, server: Server) -> Iterator[Driver]:
    with server.raw() as raw:
        for verb in script_loader.names():
            raw.script_load(script_loader.load(verb).text)
    is_async = getattr(request, "param", "sync") == "async"
    made = Driver(server.url, is_async, retry_for=0)
    yield made
    made.close()


@pytest.fixture(params=[True, False], ids=["executed", "never arrived"])
def scene(
    request: pytest.FixtureRequest, driver: Driver, server: Server, name: str
) -> Iterator[Scene]:
    with rmq.Client(server.url) as beside:
        yield Scene(driver, beside, name, request.param)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.fault("F8")
@both_clients
def test_a_batch_whose_reply_did_not_come_is_handed_over_by_the_next_receive(
    scene: Scene, mode: Any, times: int
) -> None:
    scene.send(12)
    consumer = scene.topic.consumer(mode=mode)
    scene.lose("prepare", times)

    for _ in range(times):
        with pytest.raises(rmq.OutcomeUnknown):
            scene.do(consumer.receive(5))

    assert scene.fired == times
    assert scene.all_of(consumer) == [(n, 1) for n in range(12)]
    assert scene.stats()["settled"] == 12


def test_a_lease_whose_reply_was_lost_costs_no_retry(scene: Scene) -> None:
    scene.name += "-last"
    scene.open(max_retries=0)
    scene.send(3)
    consumer = scene.topic.consumer(lease=1)
    scene.lose("prepare")

    with pytest.raises(rmq.OutcomeUnknown):
        scene.do(consumer.receive(5))
    scene.do(consumer.close())

    assert scene.stats()["in_flight"] == 0
    assert scene.stats()["dead"] == 0
    assert scene.all_of(scene.topic.consumer()) == [(n, 1) for n in range(3)]


@pytest.mark.fault("F8", "F32", control=True)
def test_a_caller_that_gives_the_number_up_loses_the_batch_from_sight(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: with the number given up, what was leased is nobody's until it lapses."""
    monkeypatch.setattr(receive, "hand_back", lambda reception: iter(()))
    scene.send(12)
    consumer = scene.topic.consumer()
    scene.lose("prepare")
    with pytest.raises(rmq.OutcomeUnknown):
        scene.do(consumer.receive(5))
    consumer._flows.state.unanswered = None

    seen = scene.all_of(consumer)

    assert len(seen) == (7 if scene.executed else 12)


@pytest.mark.parametrize("count", [1, 4])
@both_clients
def test_at_most_once_hands_over_what_it_settled_when_the_answer_was_late(
    scene: Scene, count: int
) -> None:
    scene.send(6)
    consumer = scene.topic.consumer(mode="at_most_once")
    scene.lose("ack", count)

    for _ in range(count):
        with pytest.raises(rmq.OutcomeUnknown):
            scene.do(consumer.receive(4))

    assert [one.body for one in scene.do(consumer.receive(3))] == [0, 1, 2], "no more than asked"
    assert scene.all_of(consumer) == [(3, 1), (4, 1), (5, 1)]
    assert scene.stats()["settled"] == 6


def test_at_most_once_over_several_slots_hands_over_what_some_of_them_settled(
    scene: Scene, server: Server
) -> None:
    scene.name += "-many"
    scene.open(slots=4)
    scene.send(40)
    consumer = scene.topic.consumer(mode="at_most_once")
    scene.lose("ack")

    with pytest.raises(rmq.OutcomeUnknown):
        scene.do(consumer.receive(40))

    assert sorted(scene.all_of(consumer, 40)) == [(n, 1) for n in range(40)]
    assert scene.stats()["in_flight"] == 0


@both_clients
def test_at_most_once_hands_over_once_what_was_settled_beside_a_slot_without_a_reply(
    scene: Scene, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a cluster answers so: one of its masters has gone."""
    scene.name += "-part"
    scene.open(slots=2)
    scene.do(scene.topic.send_many([rmq.Outgoing(n, slot_basis=f"b{n}") for n in range(20)]))
    consumer = scene.topic.consumer(mode="at_most_once")
    transport: Any = driver.client._transport
    inner = transport._pipeline

    def lose_last(commands: list[Any], replies: list[Any]) -> list[Any]:
        monkeypatch.undo()
        return [*replies[: len(commands) - 1], rmq.OutcomeUnknown("its master has gone")]

    def pipeline(commands: list[Any], durability: Any) -> Any:
        sent = commands if scene.executed else commands[:-1]
        replies, copies = inner(sent, durability)
        return lose_last(commands, replies), copies

    async def pipeline_async(commands: list[Any], durability: Any) -> Any:
        sent = commands if scene.executed else commands[:-1]
        replies, copies = await inner(sent, durability)
        return lose_last(commands, replies), copies

    is_blocking = driver.loop is None
    monkeypatch.setattr(transport, "_pipeline", pipeline if is_blocking else pipeline_async)

    with pytest.raises(rmq.OutcomeUnknown):
        scene.do(consumer.receive(40))

    assert sorted(scene.all_of(consumer)) == [(n, 1) for n in range(20)]
    assert scene.stats()["settled"] == 20


def test_at_most_once_a_slot_that_refuses_the_ack_keeps_its_messages(
    scene: Scene, server: Server
) -> None:
    scene.name += "-odd"
    scene.open(slots=2, dedup_window=60)
    ids = [scene.do(scene.topic.new_id(f"b{n}")) for n in range(20)]  # remembered when settled
    sent = [scene.do(scene.topic.send(n, slot_basis=f"b{n}", id=ids[n])) for n in range(20)]
    with server.raw() as raw:
        for turn in (0, 1):
            raw.set(f"rmq:{{{scene.name}_1}}:settled{turn}", "another's")
    consumer = scene.topic.consumer(mode="at_most_once")

    got = scene.do(consumer.receive(40))

    assert {one.slot for one in got} == {0}
    assert sorted(one.body for one in got) == [n for n, one in enumerate(sent) if one.slot == 0]
    with server.raw() as raw:
        raw.delete(*(f"rmq:{{{scene.name}_1}}:settled{turn}" for turn in (0, 1)))
    rest = scene.do(consumer.receive(40))
    assert sorted(one.body for one in rest) == [n for n, one in enumerate(sent) if one.slot == 1]


VERBS: dict[str, tuple[dict[str, Any], str]] = {
    # verb -> its arguments, and what counts how often it was done
    "ack": ({}, "settled"),
    "nack": ({"delay": 60}, "later"),
    "reject": ({"reason": "why"}, "dead"),
    "release": ({"delay": 60}, "later"),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("between", ["nothing", "extend"])
@both_clients
def test_a_repeated_verb_succeeds_and_is_done_once(scene: Scene, verb: str, between: str) -> None:
    scene.send(2)
    consumer = scene.topic.consumer()
    delivery, second = scene.do(consumer.receive(2))
    arguments, counter = VERBS[verb]
    scene.lose(verb)
    with pytest.raises(rmq.OutcomeUnknown):
        scene.do(getattr(delivery, verb)(**arguments))
    assert not delivery.is_settled
    if between == "extend":  # any call of the consumer asks again
        scene.do(consumer.extend([second]))

    scene.do(getattr(delivery, verb)(**arguments))

    assert delivery.is_settled
    assert not delivery.lost
    assert scene.stats()[counter] == 1
    with pytest.raises(rmq.AlreadySettled):
        scene.do(getattr(delivery, verb)(**arguments))


def test_a_part_of_what_was_acked_may_be_acked_again(scene: Scene) -> None:
    scene.send(3)
    consumer = scene.topic.consumer()
    first, second, third = scene.do(consumer.receive(3))
    scene.lose("ack")
    with pytest.raises(rmq.OutcomeUnknown):
        scene.do(consumer.ack([first, second]))

    assert scene.do(consumer.ack([second, third])) == []
    scene.do(first.ack())

    assert scene.stats()["settled"] == 3


def test_another_verb_than_the_one_whose_reply_came_late_says_so(scene: Scene) -> None:
    scene.send(1)
    (delivery,) = scene.do(scene.topic.consumer().receive())
    scene.lose("nack")
    with pytest.raises(rmq.OutcomeUnknown):
        scene.do(delivery.nack(delay=0))

    with pytest.raises(rmq.AlreadySettled, match="by the nack whose reply came late"):
        scene.do(delivery.ack())

    assert scene.stats()["returned"] == 1


def test_a_lease_extended_without_an_answer_is_still_ours_to_settle(scene: Scene) -> None:
    scene.send(1)
    (delivery,) = scene.do(scene.topic.consumer(lease=5).receive())
    before = delivery.deadline
    scene.lose("extend")
    with pytest.raises(rmq.OutcomeUnknown):
        scene.do(delivery.extend(60))

    scene.do(delivery.ack())

    assert delivery.deadline > before
    assert scene.stats()["settled"] == 1


def test_receipts_acked_again_are_not_reported_as_lost(scene: Scene) -> None:
    scene.send(4)
    consumer = scene.topic.consumer()
    receipts = [str(one.receipt) for one in scene.do(consumer.receive(4))]
    scene.lose("ack")
    with pytest.raises(rmq.OutcomeUnknown):
        scene.do(consumer.ack_receipts(receipts[:3]))

    assert scene.do(consumer.ack_receipts(receipts[1:])) == []

    assert scene.stats()["settled"] == 4
    assert len(scene.do(consumer.ack_receipts(receipts[1:]))) == 3, "told once, like any ack"


@both_clients
def test_the_end_of_a_with_block_is_repeated_by_the_next_call(scene: Scene) -> None:
    scene.name += "-slow"
    scene.open(retry=rmq.Levels((60,)))  # by default the first wait is drawn from 0 s
    scene.send(2)
    consumer = scene.topic.consumer()
    (delivery,) = scene.do(consumer.receive())
    scene.lose("nack")
    exit = delivery.__exit__ if scene.driver.loop is None else delivery.__aexit__
    assert scene.do(exit(ValueError, ValueError("no"), None)) is False

    got = scene.do(consumer.receive(2))

    assert delivery.is_settled
    assert scene.stats()["later"] == 1, "its retry waits"
    assert [one.body for one in got] == [1]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("error", [rmq.Unavailable, rmq.OutcomeUnknown])
def test_an_unreadable_message_that_cannot_be_buried_yet_holds_nothing_up(
    scene: Scene, server: Server, mode: Any, error: type[rmq.RMQError]
) -> None:
    scene.name += "-odd"
    with rmq.Client(server.url) as client:
        odd = client.topic(scene.name, codec=Odd())
        scene.open()
        scene.send(3)
        odd.send("x")
        consumer = scene.topic.consumer(mode=mode)
        transport: Any = scene.driver.client._transport
        inner = transport._command

        def refusing(command: Any) -> Any:
            if command.script.name == "reject":
                raise error("reject: not now")
            return inner(command)

        async def refusing_async(command: Any) -> Any:
            return refusing(command) if command.script.name == "reject" else await inner(command)

        transport._command = refusing if scene.driver.loop is None else refusing_async
        got = scene.do(consumer.receive(10))
        transport._command = inner

        assert [one.body for one in got] == [0, 1, 2]
        assert scene.stats()["dead"] == 0
        assert scene.do(consumer.receive(10)) == []
        assert scene.stats()["dead"] == 1


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("verb", ["prepare", "ack"])
@both_clients
def test_a_receive_that_was_interrupted_is_made_good_by_the_next(
    scene: Scene, mode: Any, verb: str
) -> None:
    scene.send(8)
    consumer = scene.topic.consumer(mode=mode)
    scene.error = KeyboardInterrupt if scene.driver.loop is None else asyncio.CancelledError
    if verb == "ack" and mode == "at_least_once":
        (delivery,) = scene.do(consumer.receive())
        scene.lose(verb)
        with pytest.raises(scene.error):
            scene.do(delivery.ack())
        scene.do(delivery.ack())
        assert scene.all_of(consumer) == [(n, 1) for n in range(1, 8)]
    else:
        scene.lose(verb)
        with pytest.raises(scene.error):
            scene.do(consumer.receive(5))
        assert sorted(scene.all_of(consumer)) == [(n, 1) for n in range(8)]

    assert scene.fired == 1
    assert scene.stats()["settled"] == 8


def test_at_most_once_keeps_no_bodies_for_a_repeat(scene: Scene, server: Server) -> None:
    scene.name += "-big"
    scene.open(codec="bytes")
    scene.do(scene.topic.send_many([rmq.Outgoing(b"x" * 4000) for _ in range(100)]))
    consumer = scene.topic.consumer(mode="at_most_once")

    assert len(scene.do(consumer.receive(100))) == 100

    with server.raw() as raw:
        slot = raw.hgetall(f"rmq:{{{scene.name}_0}}:slot")
    kept = max(len(answer) for name, answer in slot.items() if name.startswith(b"@"))
    assert 0 < kept < 100 * 20


def test_after_the_answer_is_forgotten_a_message_costs_one_retry_at_most(
    scene: Scene, server: Server
) -> None:
    """The reply stays away for longer than Redis keeps answers: a minute."""
    scene.name += "-old"
    scene.open(retry="immediate")
    scene.send(3)
    consumer = scene.topic.consumer()
    scene.lose("prepare")
    with pytest.raises(rmq.OutcomeUnknown):
        scene.do(consumer.receive(3))
    with server.raw() as raw:
        for key in raw.scan_iter(f"rmq:{{{scene.name}_0}}:replay:*"):
            raw.delete(key)

    scene.do(consumer.receive(3))  # a take of its own: it hands back nothing of the first

    assert scene.stats()["in_flight"] == 3
