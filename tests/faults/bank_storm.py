"""A run of a bank in which everything dies: two tellers, again and again, Redis, PostgreSQL.

The supervisor starts a teller for each that has killed itself, with the next fault of the plan.
One of them stops itself for longer than its lease and its claim live, and goes on. When a server is
killed depends on how far the work is, so that long runs and short ones see the same. The rules of
`storm` hold: a part of the messages waits until that teller has gone on, and the last are kept back
until all faults have come.
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
from tests.faults.storm import LOOK_S, Played, Watch, dropped, insist

TELLERS = 2
HANDS = 4
BATCH = 200  # messages of one send_many
KEPT_BACK = 0.15  # of the messages, until all faults were done
FIRST = 0.6  # of the others; the rest when the teller that stops itself has gone on: it needs some
SLOTS = 4
LEASE_S = 2.0  # a claim lives on while Redis is restarted
STOP_S = LEASE_S + 3.0  # a lease is up to a second longer, and a claim a second more
FORGET_EACH_S, FORGET_MOST = 0.3, 10
PASSES = {"finished": 8, "acked": 8}  # an ack is for many; of other steps:
MOST_PASSES, PASSES_SHARE = 60, 0.03  # of the transfers: a storm of a few has as many faults
PORTION = 10  # sends that a fault in a hurry is given
END_S = 60.0  # for a send that is tried again when a storm has failed


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

    progress, left, fired = 0.0, 0, Counter[str]()

    def __init__(
        self, scene: Bank, rng: random.Random, count: int, *, kills: int, stop: str,
        hurts: Sequence[str], forgets: str,
    ) -> None:  # fmt: skip
        self.scene = scene
        self.rng = rng
        (self.topic,) = scene.topics.values()
        self.transfers = bank.planned(rng, count)
        self.sends = bank.sends(rng, count)
        self.done: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()
        self._plans = self._planned(kills, stop)
        # When so much is done of the work that is not kept back.
        self._hurts = [(0.7 * (n + 1) / len(hurts), name) for n, name in enumerate(hurts)]
        self._forgets = forgets
        self._forgotten_at = 0.0
        self._cursor = 0
        self._stopped: dict[int, float] = {}
        self._at_work: list[Teller] = []
        self._kept = round(len(self.sends) * (1 - KEPT_BACK))
        self._first = round(self._kept * FIRST)
        self._may = self._first  # so many may be sent
        self._sent = 0
        self._over = threading.Event()
        self._errors: list[BaseException] = []
        self._watch = Watch(self._status)
        self._sender = threading.Thread(target=self._send, daemon=True)

    def _planned(self, kills: int, stop: str) -> list[tuple[list[dict[str, Any]], int]]:
        """Return the faults of each teller, and its concurrency."""
        steps = [step for _ in range(kills) for step in self.rng.sample(STEPS, len(STEPS))]
        some = [([fault(step, after=self._passes(step))], HANDS) for step in steps]
        some.insert(TELLERS, ([fault(stop, "stop", self._passes(stop)), *some.pop()[0]], 1))
        return some

    def _passes(self, step: str) -> int:
        most = min(MOST_PASSES, round(PASSES_SHARE * len(self.transfers)))
        return self.rng.randint(1, min(PASSES.get(step, most), most))

    def run(self) -> Books:
        """Play it to its end, and audit the bank."""
        for at in range(0, len(self.transfers), 1000):
            self.scene.order(self.transfers[at : at + 1000])
        self._at_work = [self._next() for _ in range(TELLERS)]
        self._sender.start()
        try:
            while not self._is_over():
                self._look()
                self._replace()
                self._wake()
                self._hurt()
                self._forget()
                self._give()
                time.sleep(LOOK_S)
            for one in self._at_work:
                one.ends()
        finally:
            self._over.set()
            self._sender.join(END_S)
        return self.scene.books(self.done, self.dropped)

    def _look(self) -> None:
        insist(not self._errors, self._errors)
        self.progress, self.left = self._progress(), self.scene.left()
        self.fired = self.scene.fired()
        begun = (self.scene.folder / "begins").stat().st_size if self.progress else 0
        self._watch.look(
            self._may, self._sent, round(self.progress, 4), self.left, begun, self.fired.total(),
            len(self.scene.tellers), len(self._hurts), len(self._stopped), self.done["go on"],
        )  # fmt: skip

    def _status(self) -> str:
        scene = self.scene
        alive = [one.plan for one in self._at_work if not one.is_gone()]
        return (
            f"{self._sent} of {len(self.sends)} sent, {self.left} left, "
            f"{scene.fired() + self.done}, to come: {self._hurts}, {self._plans}, at work {alive}, "
            f"{scene.stderr_text()}"
        )

    # --- what is sent ----------------------------------------------------------------------------

    def _send(self) -> None:
        try:
            with rmq.Client(self.scene.server.url, retry_for=30) as client:
                topic = client.topic(self.topic.name)
                ids = {send: topic.new_id() for send in set(self.sends)}
                while self._sent < len(self.sends) and not self._over.is_set():
                    part = self.sends[self._sent : min(self._may, self._sent + BATCH)]
                    some = [
                        rmq.Outgoing(self.transfers[n]._asdict(), id=ids[n, copy])
                        for n, copy in part
                    ]
                    if some:
                        self._send_some(topic, some)
                    else:
                        time.sleep(LOOK_S)
        except BaseException as error:
            self._errors.append(error)

    def _send_some(self, topic: rmq.Topic, some: list[rmq.Outgoing]) -> None:
        """Send, with the same ids until there is an answer."""
        while not self._over.is_set():
            try:
                self.answers.update(one.status for one in topic.send_many(some))
                self._sent += len(some)
                return
            except rmq.StorageError:
                self.answers["unknown"] += len(some)
                time.sleep(LOOK_S)

    def _give(self) -> None:
        """Let more be sent, when those who are waited for have come, or nothing is left to do."""
        if not self._is_awaited():
            self._may = len(self.sends)
        elif self._may == self._first:
            # Also where the first part was too little to stop anybody.
            if self.done["go on"] or self._is_settled():
                self._may = self._kept
        elif self._is_settled() and not self._hurts:
            self.scene.hurry.set()
            if self._may == len(self.sends):
                self._drop()
            self._may = min(self._may + PORTION, len(self.sends))

    def _is_settled(self) -> bool:
        """Whether all is done that may be sent so far."""
        is_still = self._stopped or any(one.is_stopped() for one in self._at_work)
        return self._sent == self._may and not is_still and not self.scene.left()

    def _is_awaited(self) -> bool:
        """Whether a fault is to come."""
        if self._plans or self._hurts or self._stopped:
            return True
        return any(one.plan and not one.is_gone() for one in self._at_work)

    def _drop(self) -> None:
        """Give up what has not happened: nothing is left that it could happen to."""
        planned = self.scene.planned()
        planned.update(f"{one['what']} {one['step']}" for plan, _ in self._plans for one in plan)
        self.dropped = dropped(planned, self.scene.fired())
        self._plans.clear()
        for one in [one for one in self._at_work if one.plan and not one.is_gone()]:
            self._at_work.remove(one)
            one.ends()

    # --- what is done to tellers -----------------------------------------------------------------

    def _next(self) -> Teller:
        # One without a plan takes no more of the work than one that stops itself.
        plan, hands = self._plans.pop(0) if self._plans else ([], 1)
        return self.scene.teller(plan, concurrency=hands)

    def _replace(self) -> None:
        for place, one in enumerate(self._at_work):
            if one.is_gone():
                code = one.process.returncode
                insist(
                    code == -signal.SIGKILL,
                    f"a teller ended by itself, {code}: {one.stderr_text()}",
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

    # --- what is done to servers and claims ------------------------------------------------------

    def _progress(self) -> float:
        """Return the share of the released transfers that is done."""
        with self.scene.engine.connect() as connection:
            count = connection.scalar(sa.select(sa.func.count()).select_from(bank.transfers))
        return float(count or 0) / len(self.transfers) / (1 - KEPT_BACK)

    def _hurt(self) -> None:
        if not self._hurts:
            return
        is_late = self._may >= self._kept and self._is_settled()
        if self.progress >= self._hurts[0][0] or is_late:
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
        return not self._is_awaited() and self._sent == len(self.sends) and not self.scene.left()


# At which step one teller stops itself, and which claims are deleted meanwhile. Between its check
# and its commit a rung without a condition repeats what others did (`test_bank_moments`).
WAYS = {
    "transaction": ("within", ""),
    "claims+transaction": ("within", "any"),
    "claims+check": ("claimed", "consumed"),
    "claims+check+condition": ("within", "any"),
    "ledger+check": ("claimed", ""),
    "ledger+condition": ("within", ""),
}


def played(scene: Bank, rng: random.Random, count: int, kills: int) -> Played:
    """Play a storm of the scene's way, and insist that all of it happened and all is well."""
    began = time.monotonic()
    (way,) = scene.topics
    stop, forgets = WAYS[way]
    hurts = ("redis", "postgres") * kills
    storm = Storm(scene, rng, count, kills=kills, stop=stop, hurts=hurts, forgets=forgets)
    books = storm.run()
    told = f"{way}: {figures(storm, books, time.monotonic() - began)}"
    insist(books.state == "valid", told)
    insist((books.ordered, books.rows) == (count, count), told)
    wanted = Counter({f"kill {step}": kills for step in STEPS})
    wanted += Counter(f"kill {name}" for name in hurts)
    wanted += Counter({f"stop {stop}": 1, "go on": 1})
    deleted = Counter({name: n for name, n in books.fired.items() if name.startswith("delete")})
    insist(bool(deleted) == bool(forgets), told)
    insist(books.fired + books.dropped == wanted + deleted, told)
    return Played(told, books.dropped)


def figures(storm: Storm, books: Books, seconds: float) -> str:
    """Return a run's figures to print."""
    runs = storm.scene.begun().total()
    copies = Counter(Counter(n for n, _ in storm.sends).values())
    return (
        f"{books}; {len(storm.sends)} sends ({dict(sorted(copies.items()))} transfers by sends), "
        f"answers {dict(storm.answers)}, {len(storm.scene.tellers)} tellers, {runs} runs begun, "
        f"{seconds:.1f} s"
    )
