"""A run of a shop in which everything dies, again and again.

    1  orders; FLUSHALL while messages wait; a resender dies as it sends again what that took
    2  the same once more
    3  controls: from here on nothing takes messages, and no resend may touch one of them
    4  orders, and meanwhile Redis is killed, PostgreSQL stands still, PostgreSQL is killed
    5  what nobody consumed so far is consumed, until nothing is left

All the while relays die between sending and marking, consumers in the handler and before they
confirm, producers before and after they commit; each dead one is followed by another. The rules of
`storm` hold.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from tests.faults.outbox_books import Books
from tests.faults.outbox_scene import Child, Shop
from tests.faults.outbox_shop import DELAYED, HELD, SLOW, SNOOZED, STORM, UNWATCHED
from tests.faults.storm import Played, Watch, dropped, insist

PLACES = {"relay": 2, "consume": 2, "produce": 2}
WAITING = 10  # messages there have to be for a flush
FREEZE_S = 10.0
LATE_S, SLOW_S = 6.0, 4.0  # how long controls are snoozed or delayed, and worked on
FEW, MANY = 4, 20  # orders
RESEND_S = 8.0  # so long after a flush all resends are done
SHARES = (0.25, 0.2, 0.55)  # of the orders, before each flush and after the controls
RESENDS = "resender unmarked"
PLANS = {  # of one round
    "relay": ["relay unmarked", RESENDS, RESENDS],
    "consume": ["consumer within", "consumer committed"],
    "produce": ["producer committed", "producer open"],
}
MOST_PASSES = {"relay": 2, "resender": 1, "consumer": 40, "producer": 8}
MOST_FLUSHES = 20  # a resender that is to die of one is there, but another may be quicker
PORTION, MOST_PORTIONS = 10, 20  # orders for a fault in a hurry
NO_END = 10**6  # orders of a producer that is told when it is enough


class Storm:
    """A run.

    Args:
        shop: its servers will be hurt.
        rng: decides what is left to chance.
        count: how many orders are committed, at least.
        rounds: how often each fault of a process is planned.
        pace_s: how long a producer rests after a transaction.
    """

    def __init__(
        self, shop: Shop, rng: random.Random, count: int, *, rounds: int, pace_s: float,
    ) -> None:  # fmt: skip
        self.shop = shop
        self.rng = rng
        self.count = count
        self.pace_s = pace_s
        self.dropped: Counter[str] = Counter()
        self._plans = {role: list(steps) * rounds for role, steps in PLANS.items()}
        self._rounds = rounds
        self._at_work: dict[str, list[Child]] = {"relay": [], "consume": [], "produce": []}
        self._watch = Watch(self._status)

    def run(self) -> Books:
        """Play it to its end, and audit the shop."""
        for role in ("relay", "consume"):
            self._at_work[role] = [self._next(role) for _ in range(PLACES[role])]
        for n, share in enumerate(SHARES[:2], start=1):
            self._produce(share)
            self._producers_end()
            self._flush(n * self._rounds)
        controls = self._controls()
        self._wait(lambda: self.shop.looked(controls, 3))
        self._batter()
        self._hurry()
        self._at_work["consume"].append(self.shop.child("consume", topics=[self.shop.held]))
        self._wait(self.shop.is_drained)
        self.shop.end()
        return self.shop.books(self.dropped)

    # --- processes -------------------------------------------------------------------------------

    def _next(self, role: str, **more: Any) -> Child:
        """The next process of a role, with the next fault of the plan."""
        step = self._plans[role].pop(0) if self._plans[role] else ""
        most = MOST_PASSES[step.split()[0]] if step else 1
        if role == "produce":  # that it comes so far: a transaction has three orders at most
            most = max(1, min(most, more["orders"] // 3))
        after = self.rng.randint(1, most)
        return self.shop.child(role, step, after, **more)

    def _replace(self) -> None:
        for role in ("relay", "consume"):
            for place, one in enumerate(self._at_work[role]):
                if one.is_gone():
                    insist(one.step, f"a process ended by itself: {one.stderr_text()}")
                    self._at_work[role][place] = self._next(role)

    def _planned(self) -> bool:
        """Whether a process is still to kill itself."""
        alive = [one for some in self._at_work.values() for one in some if one.step]
        return any(self._plans.values()) or any(not one.is_gone() for one in alive)

    def _wait(self, what: Callable[[], Any]) -> None:
        self._watch.wait(what, self._counters, self._replace)

    def _counters(self) -> Iterable[object]:
        shop = self.shop
        path = shop.folder / "history"
        counts = shop.placed(), shop.unconfirmed(), shop.left(), shop.fired().total()
        return (*counts, len(shop.children), path.stat().st_size if path.exists() else 0)

    def _status(self) -> str:
        shop = self.shop
        return (
            f"{shop.unconfirmed()} open, {shop.left()} left, {shop.fired()}, to come {self._plans},"
            f" at work {self._alive()}, {shop.stderr_text()}"
        )

    def _alive(self) -> list[str]:
        some = [one for all in self._at_work.values() for one in all if not one.is_gone()]
        return [f"{one.role} {one.step}" for one in some]

    def _hurry(self) -> None:
        """Give those work that are still to die, once all else is done; and then give them up."""
        for again in itertools.count():
            self._wait(lambda: not self._planned() or not self.shop.unconfirmed(self.shop.work))
            if not self._planned():
                return
            if again == MOST_PORTIONS:
                break
            self.shop.hurry.set()
            self.shop.place(STORM, PORTION)
        planned = self.shop.planned()
        planned.update(f"kill {step}" for steps in self._plans.values() for step in steps)
        self.dropped = dropped(planned, self.shop.fired())
        self._plans = {role: [] for role in PLANS}

    # --- producers -------------------------------------------------------------------------------

    def _produce(self, share: float, orders: int = 0) -> None:
        """Start producers of a share of all orders. `orders`: of each, if they are told to end."""
        self._target = self.shop.placed() + round(self.count * share)
        self._at_work["produce"] = []
        for _ in range(PLACES["produce"]):
            self._producer(orders or round(self.count * share) // PLACES["produce"])

    def _producer(self, count: int) -> None:
        stem = f"p{sum(one.role == 'produce' for one in self.shop.children)}"
        made = self._next(
            "produce", orders=count, stem=stem, seed=self.rng.randrange(2**32), pace_s=self.pace_s
        )
        self._at_work["produce"].append(made)

    def _producers_end(self) -> None:
        """Wait for them, and have others do what is left of those that died."""

        def is_over() -> bool:
            if not all(one.is_gone() for one in self._at_work["produce"]):
                return False
            if self.shop.enough.exists():
                return True
            missing = self._target - self.shop.placed()
            if missing > 0:
                self._producer(missing)
            return missing <= 0

        self._wait(is_over)

    # --- faults ----------------------------------------------------------------------------------

    def _is_worth_a_flush(self) -> bool:
        # A relay that never saw a topic cannot create it again as it was.
        return self.shop.ready(self._at_work["relay"]) and self.shop.left() >= WAITING

    def _flush(self, kills: int) -> None:
        """FLUSHALL, until so many resenders have died of it: another may have been quicker."""

        def died() -> bool:
            return self.shop.fired()[f"kill {RESENDS}"] >= kills

        for again in range(MOST_FLUSHES):
            if again and died():
                return
            self.shop.place(STORM, WAITING, topic=self.shop.held)  # enough for the next wait
            self._wait(self._is_worth_a_flush)
            self.shop.flush()
            until = time.monotonic() + RESEND_S
            self._wait(lambda end=until: died() or time.monotonic() > end)

    def _controls(self) -> list[str]:
        """Place them; those that the resend has to ask about."""
        self.shop.place(SNOOZED, FEW, hold_s=LATE_S)
        self.shop.place(SLOW, PLACES["consume"], hold_s=SLOW_S)
        self.shop.place(DELAYED, FEW, delay=LATE_S)
        self.shop.place(UNWATCHED, FEW)
        return self.shop.place(HELD, MANY, topic=self.shop.held)

    def _batter(self) -> None:
        """Hurt the servers, one after another, while producers write."""
        database = self.shop.database.server
        assert database is not None
        before = self.shop.placed()
        self._produce(SHARES[2], NO_END)  # so that each server is hurt while they write
        whole = self._target - before
        for place, name in enumerate(("kill redis", "freeze postgres", "kill postgres")):
            reached = before + whole * (1 + 3 * place) // 10
            self._wait(lambda many=reached: self._has_placed(many))
            if name == "kill redis":
                self.shop.server.kill()
                self.shop.server.start()
            elif name == "freeze postgres":
                database.pause()
                try:
                    time.sleep(FREEZE_S)
                finally:
                    database.resume()
            else:
                database.restart()
            self.shop.done[name] += 1
        self._wait(lambda: self._has_placed(self._target))
        self.shop.enough.touch()
        self._producers_end()

    def _has_placed(self, many: int) -> bool:
        """Whether there are so many orders; producers that have died are followed by others."""
        for one in list(self._at_work["produce"]):
            if one.is_gone():
                self._at_work["produce"].remove(one)
                self._producer(NO_END)
        return self.shop.placed() >= many


def played(shop: Shop, rng: random.Random, count: int, rounds: int, pace_s: float) -> Played:
    """Play a storm, and insist that all of it happened and all is well."""
    began = time.monotonic()
    storm = Storm(shop, rng, count, rounds=rounds, pace_s=pace_s)
    books = storm.run()
    told = figures(storm, books, time.monotonic() - began)
    insist(books.state == "valid", f"{books.wrong}\n{told}")
    steps = Counter(f"kill {step}" for plan in PLANS.values() for step in plan * rounds)
    hurt = steps + Counter(["kill redis", "freeze postgres", "kill postgres"])
    fired = books.fired + storm.dropped
    insist(fired.pop("flush") >= 2, told)
    insist(fired == hurt, told)
    insist(books.figures["stubs"] >= count, told)
    insist(books.figures["stubs resent"], told)
    insist(books.figures["rolled back stubs"], told)
    return Played(told, storm.dropped)


def figures(storm: Storm, books: Books, seconds: float) -> str:
    """Return a run's figures to print."""
    return f"{books}; {len(storm.shop.children)} processes, {seconds:.1f} s"
