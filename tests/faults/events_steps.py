"""Consumers, signallers and sweepers take their steps in an order that a seed decides, and die.

Each actor is a thread that uses the public API. It waits for its turn before each call of Redis, so
only one of them acts at a time. An actor that dies takes no further step. The clock moves when the
seed says so: leases and time limits end meanwhile. At the end nobody dies, all keys are signalled,
and the messages must end in less time than until a registration is repeated.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import rmq
from rmq.kernel.core.keys import EventKeys
from rmq.kernel.events import flows
from rmq.kernel.transport.flow.steps import Flow
from rmq.kernel.transport.single.blocking import Transport
from tests.conftest import Clock
from tests.faults.events_storm import judge

MESSAGES, LEASE_S, LONG_S, QUIET_S, STEPS, DEATHS = 4, 5, 3600, 120, 250, 3
WAIT_S = 60.0  # for a turn; no turn takes so long
_run = Transport.run


class Died(BaseException):
    """Ends an actor at one of its steps, without any cleanup."""


class Actor:
    """A thread that waits for its turn before each step of a flow."""

    def __init__(self, kind: str, work: Callable[[], None]) -> None:
        self.kind, self.is_dead, self.is_over = kind, False, False
        self.error: BaseException | None = None
        self._work = work
        self._turn, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._play, daemon=True)
        self._thread.actor = self  # type: ignore[attr-defined]
        self._thread.start()

    def _play(self) -> None:
        try:
            self.pause()
            self._work()
        except Died:
            pass
        except BaseException as error:
            self.error = error
        self.is_over = True
        self._back.release()

    def pause(self) -> None:
        """Wait for the next turn. Raise `Died` if the actor is to die."""
        if not self.is_dead:
            self._back.release()
            assert self._turn.acquire(timeout=WAIT_S)
        if self.is_dead:
            raise Died

    def start(self) -> None:
        """Wait until the thread has reached its first step."""
        assert self._back.acquire(timeout=WAIT_S)

    def act(self, dies: bool = False) -> None:
        """Let it take a step, or die."""
        self.is_dead = dies
        self._turn.release()
        assert self._back.acquire(timeout=WAIT_S)
        if self.error is not None:
            raise self.error


def run_in_turns(self: Transport, flow: Any, *args: Any, **options: Any) -> Any:
    """Replace `Transport.run`: an actor waits for its turn before each step."""
    actor = getattr(threading.current_thread(), "actor", None)
    return _run(self, flow if actor is None else _paused(flow, actor), *args, **options)


def _paused(flow: Any, actor: Actor) -> Flow[Any]:
    value: Any = None
    error: BaseException | None = None
    while True:
        try:
            step = flow.send(value) if error is None else flow.throw(error)
        except StopIteration as end:
            return end.value
        actor.pause()
        value = error = None
        try:
            value = yield step
        except BaseException as caught:
            error = caught


class Steps:
    """A run with one seed.

    Args:
        client: a client whose transport runs in turns.
        name: name of the topic.
        clock: the clock of all commands.
        seed: decides.
    """

    def __init__(self, client: rmq.Client, name: str, clock: Clock, seed: int) -> None:
        self._client, self._clock, self._rng = client, clock, random.Random(seed)
        self.topic = client.topic(name, slots=2, retry="immediate", lease=LEASE_S, dedup_window=0)
        self._keys = [f"{name}-{letter}" for letter in "abc"]
        self._waits = {
            n: [
                (key, self._rng.choice((1, LONG_S, LONG_S)))
                for key in self._rng.sample(self._keys, self._rng.randint(1, 2))
            ]
            for n in range(MESSAGES)
        }
        self._log: list[list[Any]] = []
        self._actors: list[Actor] = []
        self._is_quiet = False

    def run(self) -> list[str]:
        """Play it to its end. Return what was wrong."""
        self.topic.send_many([rmq.Outgoing(n) for n in range(MESSAGES)])
        for kind in ("consumer", "consumer", "signaller", "sweeper"):
            self._start(kind)
        deaths = DEATHS
        for _ in range(STEPS):
            actor = self._rng.choice(self._actors)
            dies = deaths > 0 and self._rng.random() < 0.03
            deaths -= dies
            self._act(actor, dies)
            if self._rng.random() < 0.03:
                self._clock.advance(self._rng.choice((0.5, 1, 6)))
        self._is_quiet = True
        self._end()
        wrong = judge(self._log)
        wrong += (
            []
            if self._is_done()
            else [f"it does not end: {self._client.admin.stats(self.topic.name)}"]
        )
        return wrong

    def _start(self, kind: str) -> None:
        actor = Actor(kind, getattr(self, f"_{kind}"))
        actor.start()
        self._actors.append(actor)

    def _act(self, actor: Actor, dies: bool = False) -> None:
        actor.act(dies)
        if actor.is_over:
            self._actors.remove(actor)
            if not self._is_quiet and (dies or actor.kind == "signaller"):
                self._start(actor.kind)

    def _end(self) -> None:
        """Let all end what they do, then let time pass while a consumer and a sweeper go on."""
        while self._actors:
            self._act(self._rng.choice(self._actors))
        for key in self._keys:
            if not self._client._transport.raw_command(
                "test", "EXISTS", EventKeys(self._client._prefix, key.encode()).event
            ):
                self._signal(key, "last")
        until = self._clock.now_ms + QUIET_S * 1000
        while not self._is_done() and self._clock.now_ms < until:
            self._consume()
            self._sweep()
            self._clock.advance(1)

    def _is_done(self) -> bool:
        return not self._client.admin.stats(self.topic.name)["records"]

    # --- what actors do --------------------------------------------------------------------------

    def _consumer(self) -> None:
        while not self._is_quiet:
            self._consume()

    def _consume(self) -> None:
        consumer = self.topic.consumer()  # not closed: a program that dies closes nothing
        for d in consumer.receive(2, wait=0):
            with suppress(rmq.LeaseLost), d:
                self._handle(d)

    def _handle(self, d: rmq.Delivery) -> None:
        events = {
            key: [event.body, event.timed_out, round(event.at.timestamp() * 1000)]
            for key, event in d.events.items()
        }
        named = [d.body, d.fence, d.attempt, self._clock.now_ms / 1000]
        self._log.append(["begin", *named, events])
        for key, limit in self._waits[d.body]:
            if key not in events or (events[key][1] and limit == LONG_S):
                self._log.append(["wait", *named, key, limit])
                raise rmq.WaitFor(key, limit)
        self._log.append(["done", *named])

    def _signaller(self) -> None:
        self._signal(self._rng.choice(self._keys), self._rng.randrange(10**6))

    def _signal(self, key: str, body: object) -> None:
        answer = self._client.signal(key, body)
        self._log.append(["signal", 0, 0, 0, 0, key, body, answer.state, 0])

    def _sweeper(self) -> None:
        while not self._is_quiet:
            self._sweep()

    def _sweep(self) -> None:
        run, prefix = self._client._transport.run, self._client._prefix
        for keys in self.topic._context.slots:
            run(flows.register(prefix, keys))
        run(flows.deliver_pending(prefix))
