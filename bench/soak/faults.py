"""The faults of a soak: their kinds, the plan of a run from its seed, and how each is made."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from bench.soak.run import Scene

CUT_S = 3.0  # longest wait of a cut for a matching call
SCRIPTS = ("send", "prepare", "ack")  # scripts that a soak calls all the time
REPLACED_AFTER_S = 0.2

FAULTS = {
    "kill-consumer": "kill -9 of a consumer process; another one is started",
    "stop-consumer": "SIGSTOP of a consumer process for longer than its lease",
    "kill-redis": "kill -9 of Redis, and a restart on the same data",
    "stop-redis": "SIGSTOP of Redis for up to 2.5 s",
    "delay": "a slow line: up to 0.2 s each way, for up to 3 s",
    "cut-replies": "connections end after the command and before its reply",
    "cut-frames": "connections end in the middle of a reply",
    "black-hole": "the line passes nothing and tells nobody, for up to 2.5 s",
    "reset": "all connections end with an RST",
    "client-kill": "CLIENT KILL of all connections",
    "script-flush": "SCRIPT FLUSH",
}


class Step(NamedTuple):
    """A fault of a plan.

    Attributes:
        at: Time of the fault, s after the start.
        name: Key of `FAULTS`.
        share: Random number from 0 to 1 that decides which process, how long, or how much.
        script: Script whose reply is cut.
    """

    at: float
    name: str
    share: float
    script: str


def plan(seed: int, names: tuple[str, ...], seconds: float, every: float) -> list[Step]:
    """Return the faults of a run, which depend only on the arguments.

    Each kind occurs once before a kind occurs again.

    Args:
        seed: Seed of the random numbers.
        names: Keys of `FAULTS`.
        seconds: Length of the run, s.
        every: Mean time between two faults, s.
    """
    rng = random.Random(f"{seed} {names}")
    steps: list[Step] = []
    at, left = every * (0.5 + rng.random() / 2), list[str]()
    while names and at < seconds:
        left = left or rng.sample(names, len(names))
        steps.append(Step(at, left.pop(), rng.random(), rng.choice(SCRIPTS)))
        at += every * (0.5 + rng.random())
    return steps


def inject(step: Step, scene: Scene) -> None:
    """Make a fault happen, wait until it is over, and record both."""
    make, target = _MAKERS[step.name](step, scene)
    scene.recorder.record("invoke", "fault", name=step.name, target=target)
    happened = make()
    scene.recorder.record("ok" if happened else "fail", "fault", name=step.name, target=target)


Maker = Callable[[Step, "Scene"], tuple[Callable[[], bool], int]]


def _kill_consumer(step: Step, scene: Scene) -> tuple[Callable[[], bool], int]:
    child = scene.consumer_at(step.share)

    def make() -> bool:
        child.kill()
        time.sleep(REPLACED_AFTER_S)
        scene.replace(child)
        return True

    return make, child.pid


def _stop_consumer(step: Step, scene: Scene) -> tuple[Callable[[], bool], int]:
    child = scene.consumer_at(step.share)

    def make() -> bool:
        child.signal(signal.SIGSTOP)
        try:
            scene.wait(scene.options.lease * (1.5 + step.share / 2))  # a lease may end 1 s late
        finally:
            child.signal(signal.SIGCONT)
        return True

    return make, child.pid


def _kill_redis(step: Step, scene: Scene) -> tuple[Callable[[], bool], int]:
    def make() -> bool:
        scene.server.kill()
        return True

    return make, 0


def _stop_redis(step: Step, scene: Scene) -> tuple[Callable[[], bool], int]:
    def make() -> bool:
        scene.server.signal(signal.SIGSTOP)
        try:
            scene.wait(0.5 + 2 * step.share)
        finally:
            scene.server.signal(signal.SIGCONT)
        return True

    return make, 0


def _delay(step: Step, scene: Scene) -> tuple[Callable[[], bool], int]:
    def make() -> bool:
        scene.server.proxy.delay_s = 0.01 + 0.19 * step.share
        try:
            scene.wait(1 + 2 * step.share)
        finally:
            scene.server.proxy.delay_s = 0
        return True

    return make, 0


def _black_hole(step: Step, scene: Scene) -> tuple[Callable[[], bool], int]:
    def make() -> bool:
        scene.server.proxy.hole = True
        try:
            scene.wait(0.5 + 2 * step.share)
        finally:
            scene.server.proxy.hole = False
        return True

    return make, 0


def _cut(inside: bool) -> Maker:
    def maker(step: Step, scene: Scene) -> tuple[Callable[[], bool], int]:
        def make() -> bool:
            proxy = scene.server.proxy
            fired, until = proxy.fired, time.monotonic() + CUT_S
            proxy.cut(step.script, times=1 + int(step.share * 4), inside=inside)
            while proxy.fired == fired and time.monotonic() < until:
                scene.wait(0.02)
            scene.wait(0.2)  # for the other replies of this cut
            proxy.pass_all()
            return proxy.fired > fired

        return make, 0

    return maker


def _reset(step: Step, scene: Scene) -> tuple[Callable[[], bool], int]:
    def make() -> bool:
        scene.server.proxy.reset()
        return True

    return make, 0


def _command(*words: str) -> Maker:
    def maker(step: Step, scene: Scene) -> tuple[Callable[[], bool], int]:
        return lambda: bool(scene.server.command(*words)), 0

    return maker


_MAKERS: dict[str, Maker] = {
    "kill-consumer": _kill_consumer,
    "stop-consumer": _stop_consumer,
    "kill-redis": _kill_redis,
    "stop-redis": _stop_redis,
    "delay": _delay,
    "cut-replies": _cut(inside=False),
    "cut-frames": _cut(inside=True),
    "black-hole": _black_hole,
    "reset": _reset,
    "client-kill": _command("CLIENT", "KILL", "TYPE", "normal"),
    "script-flush": _command("SCRIPT", "FLUSH"),
}
