"""A teller of the bank, a worker that dies when it is told to.

Its task is the JSON in the first argument: topics, each with the way in which it is kept once, and
the faults that the process does to itself, one after another: at which step, at which of the times
that the step is reached, and what: kill, stop (SIGSTOP), wait (until a file is there), or raise.

    taken      it is leased                        committed  the money is moved, for good
    claimed    its key is claimed                  finished   its key is marked as done
    within     half of the money is moved          acked      Redis has its ack

With `together` all that reach the step wait there, until the last of them has come; if it is to
raise, they all do. When the storm is in a hurry, a fault comes at the next pass (`storm.Hurry`).
"""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import sqlalchemy as sa

import rmq
from rmq.kernel.consumer import claim_flows
from rmq.kernel.transport.flow.steps import Pipeline
from rmq.ledger import Ledger, exactly_once
from rmq.sql.ledger.exactly_once import ExactlyOnce
from rmq.sql.ledger.store import LedgerMiddleware
from rmq.worker.receiving import feed
from rmq.worker.settling.settler import Settler
from tests.faults import bank, bank_mutants
from tests.faults.storm import Hurry
from tests.faults.worker_child import Book

STEPS = ("taken", "claimed", "within", "committed", "finished", "acked")
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
MOMENT_S = 0.05  # until a signal to itself has reached all threads


class Faults:
    """The faults that this process causes to itself."""

    def __init__(
        self, plan: list[dict[str, Any]], together: bool, book: Book, hurry: Hurry
    ) -> None:
        self._plan = plan
        self._together = together
        self._book = book
        self._hurry = hurry
        self._raises = False  # also where it waited for the others
        self._passed = 0
        self._lock = threading.Lock()
        self._over = threading.Event()

    def reach(self, step: str, first: Callable[[], object] = lambda: None) -> None:
        """A step is reached. `first`: what has to be done before a fault here."""
        with self._lock:
            if not self._plan or self._plan[0]["step"] != step:
                return
            self._passed += 1
            is_last = self._passed >= self._plan[0]["after"] or bool(self._hurry)
            if is_last or self._together:
                first()
            fault = self._plan.pop(0) if is_last else None
            self._passed *= not is_last
            if fault is not None and fault["what"] in SIGNALS:
                self._do(fault)  # before another thread comes to the next fault
        if fault is not None:
            if fault["what"] == "raise":
                self._raises = True
                self._book.write("fault", name=f"raise {step}")
            elif fault["what"] not in SIGNALS:
                self._do(fault)
            self._over.set()
        elif self._together:
            self._over.wait()
        if self._raises and (fault is not None or self._together):
            raise ConnectionError("asked to raise")

    def _do(self, fault: dict[str, Any]) -> None:
        self._book.write("fault", name=f"{fault['what']} {fault['step']}")
        if fault["what"] == "wait":
            while not Path(fault["gate"]).exists():
                time.sleep(0.01)
        else:
            os.kill(os.getpid(), SIGNALS[fault["what"]])
            time.sleep(MOMENT_S)


def watch(faults: Faults) -> None:
    """Have the steps that RMQ takes told to the faults."""
    claim_keys, settle = feed.claim_keys, Settler._settle

    def claims(*arguments: Any) -> None:
        faults.reach("taken")
        claim_keys(*arguments)

    def settles(self: Settler, verb: str, deliveries: Any, flow: Any, **options: Any) -> None:
        def acks(left: Any) -> Any:
            def finish_alone() -> None:
                beside = claim_flows.finish(self._flows.context, left)
                if beside is not None:
                    self._run(_alone(beside))

            faults.reach("finished", finish_alone)
            lost = yield from flow(left)
            faults.reach("acked")
            return lost

        settle(self, verb, deliveries, acks if verb == "ack" else flow, **options)

    feed.claim_keys, Settler._settle = claims, settles  # type: ignore[method-assign, assignment]
    for guard in (LedgerMiddleware, ExactlyOnce):
        guard.run = _with_steps(guard.run, faults, guard is ExactlyOnce)  # type: ignore[method-assign]


def _alone(beside: claim_flows.ExtraCommands) -> Any:
    yield Pipeline(beside.commands)


def _with_steps(run: Any, faults: Faults, commits: bool) -> Any:
    def run_with_steps(self: Any, delivery: Any, inner: Any) -> bool:
        faults.reach("taken")
        did_work = run(self, delivery, inner)
        if commits and did_work:
            faults.reach("committed")
        return bool(did_work)

    return run_with_steps


class Teller:
    """Handlers of transfers, each with a rung of the ladder around it."""

    def __init__(self, engine: sa.Engine, faults: Faults, book: Book, slow_s: float) -> None:
        self.engine = engine
        self.faults = faults
        self.book = book
        self.slow_s = slow_s

    def key(self, body: dict[str, Any]) -> str:
        return str(body["key"])

    def check(self, d: rmq.Delivery) -> bool:
        self.faults.reach("claimed")
        return bank.is_open(self.engine, d.body["key"])

    def half(self) -> None:
        if self.slow_s:
            time.sleep(self.slow_s)
        self.faults.reach("within")

    def handler(self, way: str) -> Callable[..., None]:
        """A function to register: "nothing", a store "claims" or "ledger", "transaction".

        A store may have more behind it, each after a "+": check, condition, transaction.
        """
        store, *more = way.split("+")

        def begin(body: dict[str, Any]) -> None:
            self.book.write("begin", key=body["key"])
            if "check" not in more:
                self.faults.reach("claimed")

        def move_within(body: dict, connection: sa.Connection) -> None:
            begin(body)
            bank.write(connection, body, self.half)

        def move(body: dict) -> None:
            begin(body)
            apply = bank.apply_if_open if "condition" in more else bank.apply
            apply(self.engine, body, self.half)
            self.faults.reach("committed")

        if "transaction" in (store, *more):
            made: Any = exactly_once(self.engine, key=self.key)(move_within)
        else:
            made = move
        stores = {"claims": rmq.Claims, "ledger": lambda: Ledger(self.engine)}
        if store in stores:
            check = self.check if "check" in more else None
            made = rmq.idempotent(stores[store](), key=self.key, check=check)(made)
        return made  # type: ignore[no-any-return]


def main(text: str) -> int:
    task: dict[str, Any] = json.loads(text)
    logging.basicConfig(level="ERROR", format="%(asctime)s %(threadName)s %(message)s")
    hands = task["concurrency"] * len(task["topics"])
    engine = sa.create_engine(task["database"], pool_size=hands + 2, max_overflow=hands + 2)
    client = rmq.Client(task["url"], retry_for=5, timeout=5)
    hurry = Hurry(Path(task["hurry"]))
    faults = Faults(task["plan"], task["together"], Book(task["faults"]), hurry)
    for mutant in task["mutants"]:
        getattr(bank_mutants, mutant)(faults)
    watch(faults)
    teller = Teller(engine, faults, Book(task["begins"]), task["slow_s"])
    for topic, way in task["topics"].items():
        client.topic(topic).handler(concurrency=task["concurrency"])(teller.handler(way))
    if not task["together"]:
        return rmq.Worker(client, grace=10).run()
    # A worker for each topic: those that wait at a step would hold up the threads that all topics
    # of a worker share.
    # A heartbeat's process for each of them would be most of the work.
    *others, last = [
        rmq.Worker(client, topics=[topic], grace=10, heartbeat="thread") for topic in task["topics"]
    ]
    with ExitStack() as stack:
        for worker in others:
            stack.enter_context(worker)
        return last.run()
