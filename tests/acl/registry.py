"""The steps of roles, and what several of them need."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import rmq
from rmq.kernel.topic import clock as command_clock
from rmq.kernel.transport.acl import ROLES, SCRIPTS, Role
from tests.acl.scene import Scene, Step
from tests.patience import PATIENCE_S, wait_for

STEPS: dict[Role, dict[str, Step]] = {role: {} for role in ROLES}
ON_TOPICS = tuple(role for role in ROLES if SCRIPTS[role])
LARGE = "x" * 40_000
RUN = "a" * 32


def of(*roles: Role) -> Any:
    """Make a function a step of these roles."""

    def register(step: Step) -> Step:
        for role in roles:
            STEPS[role][step.__name__] = step
        return step

    return register


def lose_one(s: Scene) -> None:
    """Send three audited messages, and lose one of them."""
    with rmq.Client(s.server.url, interceptors=[rmq.Audit()]) as client:
        ids = [client.topic(s.name).send(n).id for n in range(3)]
    s.raw.zrem(f"rmq:{{{s.name}_0}}:store", ids[1].member)
    s.raw.hdel(f"rmq:{{{s.name}_0}}:records", ids[1].member)


def settle_one_with_a_dedup_key(s: Scene) -> None:
    s.full.topic(s.name, dedup_window=60).send(1, dedup_key="1")
    with s.full.topic(s.name).consumer() as consumer:
        consumer.receive()[0].ack()


def inner_of(made: Any) -> Any:
    """The object of rmq that an async one is driven for."""
    return getattr(made, "target", made)


def first(s: Scene, batch: list[Any], key: Any = lambda body: "1") -> list[Any]:
    """Claim the keys of deliveries, as the user."""
    inner = [inner_of(delivery) for delivery in batch]
    if s.kind == "sync":
        return rmq.Claims().first(inner, key=key)
    flow = rmq.Claims().first_async(inner, key=key)
    return list(s.api.loop.run_until_complete(flow))


# --- somebody who waits ----------------------------------------------------------------------


@contextlib.contextmanager
def waiting(s: Scene) -> Iterator[list[Any]]:
    """A consumer with all rights that waits, and has left a credit."""
    got: list[Any] = []

    def work() -> None:
        with rmq.Client(s.server.url) as client, client.topic(s.name).consumer() as consumer:
            deliveries = consumer.receive(wait=PATIENCE_S)
            got.extend(deliveries)
            consumer.ack(deliveries)

    s.full.topic(s.name).open()
    thread = threading.Thread(target=work)
    thread.start()
    try:
        wait_for(lambda: s.raw.hget(f"rmq:{{{s.name}_0}}:slot", "credits"), "nobody waits")
        yield got
    finally:
        if thread.is_alive() and not got:
            command_clock.set_clock(None)
            s.full.topic(s.name).send("end")
        thread.join()


def handed(s: Scene, got: list[Any]) -> None:
    """Wait until it has what was handed over."""
    wait_for(lambda: got, "nothing was handed over")
