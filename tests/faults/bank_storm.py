"""A run of a bank in which everything dies: two tellers, again and again, Redis, PostgreSQL.

The supervisor starts a teller for each that has killed itself, with the next fault of the plan.
One of them stops itself for longer than its lease and its claim live, and goes on. When a server is
killed depends on how far the work is, so that long runs and short ones see the same. There is work
for all that is planned: a part of the messages waits until that teller has gone on, and the last
are sent when everything has been done.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

import rmq
from tests.faults import bank
from tests.faults.bank_books import Books
from tests.faults.bank_child import STEPS
from tests.faults.bank_scene import Bank, Teller, fault

TELLERS = 2
HANDS = 4
BATCH = 200  # messages of one send_many
KEPT_BACK = 0.15  # of the messages, until all faults were done
FIRST = 0.6  # of the others; the rest when the teller that stops itself has gone on: it needs some
LEASE_S = 2.0  # a claim lives on while Redis is restarted
STOP_S = LEASE_S + 3.0  # a lease is up to a second longer, and a claim a second more
LOOK_S = 0.1
FORGET_EACH_S, FORGET_MOST = 0.3, 10
PASSES = {"finished": 8, "acked": 8}  # an ack is for many; of other steps:
MOST_PASSES = 60


class Storm:
    """A run.

    Args:
        scene: a bank with one topic; its servers will be hurt.
        rng: decides everything that is left to chance.
        count: how many transfers.
        kills: how often a teller kills itself at each step.
        stop: at which step one teller, who has a single hand, stops itself.
        hurts: servers to kill, in this order: "redis", "postgres".
        forgets: claims to delete: "consumed" ones, "any", or "".
    """

    def __init__(
        self, scene: Bank, rng: random.Random, count: int, *, kills: int, stop: str,
        hurts: Sequence[str], forgets: str, within_s: float,
    ) -> None:  # fmt: skip
        self.scene = scene
        self.rng = rng
        (self.topic,) = scene.topics.values()
        self.transfers = bank.planned(rng, count)
        self.sends = bank.sends(rng, count)
        self.done: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()
        self._plans = self._planned(kills, stop)
        # When so much is done of the work that is not kept back.
        self._hurts = [(0.7 * (n + 1) / len(hurts), name) for n, name in enumerate(hurts)]
        self._forgets = forgets
        self._forgotten_at = 0.0
        self._cursor = 0
        self._stopped: dict[int, float] = {}
        self._at_work: list[Teller] = []
        self._second, self._calm = threading.Event(), threading.Event()
        self._until = time.monotonic() + within_s
        self._sender = threading.Thread(target=self._send, daemon=True)

    def _planned(self, kills: int, stop: str) -> list[tuple[list[dict[str, Any]], int]]:
        """Return the faults of each teller, and its concurrency."""
        steps = [step for _ in range(kills) for step in self.rng.sample(STEPS, len(STEPS))]
        some = [([fault(step, after=self._passes(step))], HANDS) for step in steps]
        some.insert(TELLERS, ([fault(stop, "stop", self._passes(stop)), *some.pop()[0]], 1))
        return some

    def _passes(self, step: str) -> int:
        return self.rng.randint(1, PASSES.get(step, MOST_PASSES))

    def run(self) -> Books:
        """Play it to its end, and audit the bank."""
        for at in range(0, len(self.transfers), 1000):
            self.scene.order(self.transfers[at : at + 1000])
        self._sender.start()
        self._at_work = [self._next() for _ in range(TELLERS)]
        while not self._is_over():
            assert time.monotonic() < self._until, f"too late: {self._status()}"
            self._replace()
            self._wake()
            self._release()
            self._hurt()
            self._forget()
            time.sleep(LOOK_S)
        for one in self._at_work:
            one.ends()
        return self.scene.books(self.done)

    def _status(self) -> str:
        scene = self.scene
        return f"{scene.left()} left, {scene.fired() + self.done}, {scene.stderr_text()}"

    # --- what is sent ----------------------------------------------------------------------------

    def _send(self) -> None:
        with rmq.Client(self.scene.server.url, retry_for=30) as client:
            topic = client.topic(self.topic.name)
            ids = {send: topic.new_id() for send in set(self.sends)}
            kept = round(len(self.sends) * (1 - KEPT_BACK))
            first = round(kept * FIRST)
            for part, given in (
                (self.sends[:first], self._second),
                (self.sends[first:kept], self._calm),
                (self.sends[kept:], self._calm),
            ):
                for at in range(0, len(part), BATCH):
                    some = [
                        rmq.Outgoing(self.transfers[n]._asdict(), id=ids[n, copy])
                        for n, copy in part[at : at + BATCH]
                    ]
                    self._send_some(topic, some)
                given.wait()

    def _send_some(self, topic: rmq.Topic, some: list[rmq.Outgoing]) -> None:
        """Send, with the same ids until there is an answer."""
        while True:
            try:
                self.answers.update(one.status for one in topic.send_many(some))
                return
            except rmq.StorageError:
                self.answers["unknown"] += len(some)
                time.sleep(LOOK_S)

    # --- what is done to tellers -----------------------------------------------------------------

    def _next(self) -> Teller:
        # One without a plan takes no more of the work than one that stops itself.
        plan, hands = self._plans.pop(0) if self._plans else ([], 1)
        return self.scene.teller(plan, concurrency=hands)

    def _replace(self) -> None:
        for place, one in enumerate(self._at_work):
            if one.is_gone():
                code = one.process.returncode
                assert code == -signal.SIGKILL, (
                    f"a teller ended by itself, {code}: {one.stderr_text()}"
                )
                self._at_work[place] = self._next()

    def _wake(self) -> None:
        for one in self._at_work:
            if one.pid in self._stopped:
                if time.monotonic() > self._stopped[one.pid] + STOP_S:
                    one.go_on()
                    self._stopped.pop(one.pid)
                    self.done["go on"] += 1
            elif one.is_stopped():
                self._stopped[one.pid] = time.monotonic()

    def _release(self) -> None:
        """Let the second part be sent, also where the first was too little to stop anybody."""
        if self.done["go on"] or (not self._stopped and self._progress() >= FIRST):
            self._second.set()

    # --- what is done to servers and claims ------------------------------------------------------

    def _progress(self) -> float:
        """Return the share of the released transfers that is done."""
        with self.scene.engine.connect() as connection:
            count = connection.scalar(sa.select(sa.func.count()).select_from(bank.transfers))
        return float(count or 0) / len(self.transfers) / (1 - KEPT_BACK)

    def _hurt(self) -> None:
        if self._hurts and self._progress() >= self._hurts[0][0]:
            name = self._hurts.pop(0)[1]
            if name == "redis":
                self.scene.server.kill()
                self.scene.server.start()
            else:
                assert self.scene.database.server is not None
                self.scene.database.server.restart()
            self.done[f"kill {name}"] += 1

    def _forget(self) -> None:
        """Delete some claims, wherever the cursor is."""
        if not self._forgets or time.monotonic() < self._forgotten_at + FORGET_EACH_S:
            return
        self._forgotten_at = time.monotonic()
        with self.scene.server.raw() as redis:
            match = f"rmq:{{{self.topic.name}_*}}:claim:*"
            self._cursor, keys = redis.scan(self._cursor, match=match, count=1000)
            states = {key: (redis.get(key) or b"").split(b" ")[0].decode() for key in keys}
            some = [key for key in keys if states[key] == "consumed" or self._forgets == "any"]
            for key in self.rng.sample(some, min(len(some), FORGET_MOST)):
                self.done[f"delete {states[key]}"] += redis.delete(key)

    # --- the end ---------------------------------------------------------------------------------

    def _is_over(self) -> bool:
        planned = sum(len(one.plan) for one in self.scene.tellers)
        if self._plans or self._hurts or self.scene.fired().total() < planned:
            return False
        if any(one.plan and not one.is_gone() for one in self._at_work):
            return False
        self._calm.set()
        return not self._sender.is_alive() and not self.scene.left()


def figures(storm: Storm, books: Books, seconds: float) -> str:
    """Return a run's figures to print."""
    runs = storm.scene.begun().total()
    copies = Counter(Counter(n for n, _ in storm.sends).values())
    return (
        f"{books}; {len(storm.sends)} sends ({dict(sorted(copies.items()))} transfers by sends), "
        f"answers {dict(storm.answers)}, {len(storm.scene.tellers)} tellers, {runs} runs begun, "
        f"{seconds:.1f} s"
    )
