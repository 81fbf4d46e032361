"""Commands of one message, which scripts have a short form for: each is built on an empty slot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rmq.kernel.consumer import scripts as consumer_scripts
from rmq.kernel.consumer.scripts import Offer
from rmq.kernel.producer import scripts as producer_scripts
from rmq.kernel.transport.flow.steps import Command
from tests.lua.box import Box
from tests.lua.crediting import Sleeper
from tests.lua.following import ack_then_command, follow_up


def send(**options: Any) -> Callable[[Box], Command[Any]]:
    """A send of one message whose id was made for it."""

    def command(box: Box) -> Command[Any]:
        head, rest = box.part(**options)
        return producer_scripts.send_uniform(
            box.handle, box.keys, box.session(), head, box.ids(), [rest]
        )

    return command


def take(waiting: int, limit: int = 1) -> Callable[[Box], Command[Any]]:
    """A take of so many from so many that wait; who asks for many would wait for them."""

    def command(box: Box) -> Command[Any]:
        box.send(waiting)
        return consumer_scripts.prepare(box.keys, box.session(), limit, 30_000, limit > 1)

    return command


def ack(box: Box) -> Command[Any]:
    box.one()
    return box.ack_command([box.take_one()], box.session())


def ack_then(box: Box) -> Command[Any]:
    box.one()
    return ack_then_command(box, [box.take_one()], follow_up(box))


def ack_with_result(box: Box) -> Command[Any]:
    """An ack of a message that keeps its result, when an earlier result is past its time."""
    box.one(keep=1)
    box.run(ack_then_command(box, [box.take_one()], results=[b"sold"]))
    box.clock.advance(2)
    box.one(keep=60)
    return ack_then_command(box, [box.take_one()], results=[b"s\x90value"], keep_s=60)


def send_with_result(box: Box) -> Command[Any]:
    """A send of a message that keeps its result, to a slot that had such a message."""
    box.one(keep=60)
    return send(keep=60)(box)


def shared(box: Box) -> Command[Any]:
    """A take under a shared lease that is there."""
    box.send(2)
    first = box.prepare(shared=0)
    number = first.deadline_s - 3_000_000_000
    return consumer_scripts.prepare(box.keys, box.session(), 1, 30_000, False, shared=number)


def offering(box: Box) -> Command[Any]:
    """A take that finds nothing and leaves a credit."""
    sleeper = Sleeper(box)
    box.sleeper = sleeper  # type: ignore[attr-defined]  # it listens as long as the slot is used
    offer = Offer(1, sleeper.channel, sessions=[])
    return consumer_scripts.prepare(box.keys, box.session(), 10, 30_000, offer)


def handed_over(box: Box) -> Command[Any]:
    """A send to a consumer that has left a credit."""
    sleeper = Sleeper(box)
    box.sleeper = sleeper  # type: ignore[attr-defined]
    sleeper.offer(limit=1, hand_overs=2)
    return send()(box)


COMMANDS: dict[str, Callable[[Box], Command[Any]]] = {
    **{f"send, priority {p}": send(priority=p) for p in (17, 100, 65_536, 1_048_575)},
    "send, hand over": handed_over,
    "take the only one": take(1),
    "take one of three": take(3),
    "take ten, one is there": take(1, 10),
    "take under a shared lease": shared,
    "take nothing, leave a credit": offering,
    "ack": ack,
    "ack with a follow-up": ack_then,
    "ack with a result": ack_with_result,
    "send with a result": send_with_result,
}
