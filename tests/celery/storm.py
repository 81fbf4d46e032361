"""A storm of Celery: workers, their children and Redis die while tasks run.

Two workers with the pool prefork and one with threads run tasks of four kinds:

    late   `acks_late` and `reject_on_worker_lost`; each third has an ETA
    again  as late, and is tried again once, with a countdown
    early  is acked before it runs, so its process may take it along

Three kinds of faults come one after another, in an order of the seed: a child of prefork is killed;
a worker is killed, with its children or without them; Redis fails as in `follow_ups_storm`, and
loses nothing that it has answered. The rules of `storm` hold: tasks are sent until all faults have
come.

At the end, each task that is acked late must have ended. A task may run more often than it was
tried only if the process or the worker of the former run was killed, or if a lease ended because
Redis answered no write for so long. No task runs before its ETA.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import kombu.pools
import psutil

import rmq
from tests.celery.storm_worker import Task, make
from tests.faults.follow_ups_storm import Place, opened
from tests.faults.storm import LOOK_S, Played, Watch, insist
from tests.forkserver import Forked

LEASE_S, END_S = 4.0, 300.0
PREFORK, THREADS = ("-P", "prefork", "-c", "2"), ("-P", "threads", "-c", "2")
POOLS = (PREFORK, PREFORK, THREADS)
FAULTS = ("child",) * 4 + ("worker",) * 3 + ("redis",) * 2
KINDS = ("late", "late", "again", "early")
AT_ONCE, MOST_WAITING = 6, 40  # tasks that are sent at each look; tasks that may wait
LONGEST_S, DELAY_S = 0.25, 2.0  # a run, and an ETA
OUTAGE_S = 0.2  # a send that takes longer waits for Redis
ACK_S = 2.0  # an ack may reach Redis so long after the end of a run
EARLY_LOST = 2  # tasks of each killed process that it may have acked, and not begun


class Run(NamedTuple):
    """A run of a task. `end` is None if it did not end."""

    began: float
    end: float | None
    pid: int
    worker: int


class Sent(NamedTuple):
    """A task that was sent. `due` is its ETA, or 0."""

    kind: str
    due: float


class Books:
    """The tasks that were sent, their runs and the killed processes. `wrong` compares them.

    Attributes:
        sent: The tasks, by their numbers.
        killed: When each process was killed, by its pid.
        outages: When sends began and ended that waited for Redis.
    """

    def __init__(self, log: Path, lease: float) -> None:
        self._log, self._lease = log, lease
        self.sent: list[Sent] = []
        self.killed: dict[int, float] = {}
        self.outages: list[tuple[float, float]] = []

    def runs(self) -> dict[tuple[int, int], list[Run]]:
        """Return the runs of each task, by its number and its retry."""
        open_runs: dict[tuple[int, int, int], float] = {}
        found: dict[tuple[int, int], list[Run]] = defaultdict(list)
        for line in self._log.read_text().splitlines():
            word, number, retries, pid, worker, at = line.split()
            task, process = (int(number), int(retries)), int(pid)
            if word == "began":
                open_runs[*task, process] = float(at)
                found[task].append(Run(float(at), None, process, int(worker)))
            else:
                began = open_runs.pop((*task, process))
                place = [(run.pid, run.began) for run in found[task]].index((process, began))
                found[task][place] = found[task][place]._replace(end=float(at))
        return found

    def tries(self, kind: str) -> int:
        """Return how often a task of a kind is tried."""
        return 2 if kind == "again" else 1

    def unfinished(self) -> list[tuple[int, int]]:
        """Return the tries of tasks with late acks that have not ended."""
        runs = self.runs()
        wanted = [
            (number, retry)
            for number, task in enumerate(self.sent)
            if task.kind != "early"
            for retry in range(self.tries(task.kind))
        ]
        return [each for each in wanted if all(run.end is None for run in runs.get(each, ()))]

    def _is_explained(self, run: Run, following: Run) -> bool:
        """Whether a run may be followed by another one of the same try."""
        acked_by = (run.end or following.began) + ACK_S
        for began, ended in self.outages:
            if began < acked_by and ended > run.began:
                acked_by = max(acked_by, ended + ACK_S)
                # A lease was last renewed up to a third of its length before the outage.
                if ended - began > self._lease / 2:
                    return True
        times = [self.killed[pid] for pid in (run.pid, run.worker) if pid in self.killed]
        return any(run.began <= at <= min(acked_by, following.began) for at in times)

    def wrong(self) -> Iterator[str]:
        """Yield what the promises exclude."""
        runs = self.runs()
        for number, retry in self.unfinished():
            yield f"lost: {self.sent[number]}, {number}, try {retry}: {runs[number, retry]}"
        for (number, retry), each in runs.items():
            task = self.sent[number]
            if retry >= self.tries(task.kind):
                yield f"a try too many: {task}, {number}, try {retry}: {each}"
            if retry == 0 and each[0].began < task.due:
                yield f"early by {task.due - each[0].began:.3f} s: {number}"
            # Each run of the first try may have sent the second one before its process died.
            sent_again = len(runs[number, retry - 1]) - 1 if retry else 0
            repeated = [
                (run, following)
                for run, following in pairwise(sorted(each, key=lambda run: run.began))
                if not self._is_explained(run, following)
            ]
            for run, following in repeated[sent_again:]:
                yield f"doubled: {task}, {number}, try {retry}: {run}, {following}"
        early = [number for number, task in enumerate(self.sent) if task.kind == "early"]
        never = [number for number in early if (number, 0) not in runs]
        if len(never) > EARLY_LOST * len(self.killed):
            yield f"lost: {len(never)} early tasks, {len(self.killed)} processes killed: {never}"
        for number in early:
            for run in runs.get((number, 0), ()):
                if run.end is None and not {run.pid, run.worker} & self.killed.keys():
                    yield f"lost: early, {number}: {run}"

    def doubled(self) -> int:
        """Return how many runs were repeated."""
        return sum(len(runs) - 1 for runs in self.runs().values())


class Found(NamedTuple):
    """The outcome of a storm."""

    figures: str
    wrong: list[str]


class Storm:
    """A run.

    Args:
        place: Redis.
        folder: for what processes write.
        stem: with which the name of the topic begins.
        rng: decides.
        faults: of `child`, `worker` and `redis`.
        broken: a broken variant, of `storm_worker.BROKEN`.
        pools: of the workers.
        lease: of the deliveries, s.
        longest_s: the longest run of a task.
        kinds: of the tasks, of KINDS.
    """

    def __init__(
        self, place: Place, folder: Path, stem: str, rng: random.Random,
        faults: tuple[str, ...] = FAULTS, broken: str = "",
        pools: tuple[tuple[str, ...], ...] = POOLS, lease: float = LEASE_S,
        longest_s: float = LONGEST_S, kinds: tuple[str, ...] = KINDS,
    ) -> None:  # fmt: skip
        self._place, self._folder, self._rng, self._longest_s = place, folder, rng, longest_s
        log = folder / "log"
        log.touch()
        self._task = Task(place.url, stem, str(log), lease, broken=broken)
        self.books = Books(log, lease)
        self._faults = rng.sample(faults, len(faults))
        self._fired: Counter[str] = Counter()
        self._fault_at = 0.0
        # A server dies with the thread that has started it, so one thread lives to the end.
        self._thread = ThreadPoolExecutor(1)
        self._failing: Future[str] | None = None  # Redis
        self._workers: list[tuple[Forked, tuple[str, ...]]] = []
        self._started = 0
        self._app = make(self._task)
        self._client = rmq.Client(place.url, retry_for=30)
        self._topic = f"{stem}.celery"
        self._pools, self._kinds = pools, kinds

    def run(self) -> Found:
        """Play it to its end, and judge it."""
        watch = Watch(self._state, end_s=END_S)
        try:
            for pool in self._pools:
                self._start(pool)
            self._send(AT_ONCE)
            while self._faults or self._is_failing():
                if self._is_failing():
                    self._send(1)
                elif self._client.admin.stats(self._topic)["records"] < MOST_WAITING:
                    self._send(AT_ONCE)
                self._look()
                self._see(watch)
            while self._client.admin.stats(self._topic)["records"] or self._is_running():
                self._see(watch)
            return self._judge()
        finally:
            self._end()

    def _is_running(self) -> bool:
        """Whether a task runs. It may have been acked before it began."""
        time.sleep(LOOK_S)
        return any(
            run.end is None and not {run.pid, run.worker} & self.books.killed.keys()
            for runs in self.books.runs().values()
            for run in runs
        )

    def _see(self, watch: Watch) -> None:
        for worker, _ in self._workers:
            insist(worker.poll() is None, f"a worker has ended: {worker.returncode}")
        size = Path(self._task.log).stat().st_size
        watch.look(len(self.books.sent), size, self._fired.total())
        time.sleep(LOOK_S)

    def _state(self) -> object:
        errors = [path.read_text()[-1500:] for path in self._folder.glob("err-*")]
        stats = self._client.admin.stats(self._topic)
        return stats, self.books.unfinished()[:5], dict(self._fired), "\n".join(errors)

    def _judge(self) -> Found:
        stats = self._client.admin.stats(self._topic)
        wrong = list(self.books.wrong())
        if stats["dead"]:
            wrong.append(f"{stats['dead']} dead letters")
        away = [f"{end - began:.1f}" for began, end in self.books.outages]
        figures = (
            f"{len(self.books.sent)} tasks, {self.books.doubled()} runs repeated; "
            f"{dict(self._fired)}, Redis away for {', '.join(away) or 0} s"
        )
        return Found(figures, wrong)

    # --- what is done ----------------------------------------------------------------------------

    def _send(self, count: int) -> None:
        for _ in range(count):
            number = len(self.books.sent)
            kind = self._rng.choice(self._kinds)
            given = (number, self._rng.uniform(0, self._longest_s))
            delay = self._rng.uniform(0, DELAY_S) if kind == "late" and number % 3 == 0 else None
            # The ETA is computed later than this, so it is never earlier.
            due = time.time() + delay if delay else 0.0
            self.books.sent.append(Sent(kind, due))
            began = time.time()
            self._app.tasks[f"storm.{kind}"].apply_async(given, countdown=delay)
            if time.time() - began > OUTAGE_S:
                self.books.outages.append((began, time.time()))

    def _start(self, pool: tuple[str, ...]) -> None:
        self._started += 1
        task = Task(**{**vars(self._task), "pool": pool})
        with (self._folder / f"err-{self._started}").open("wb") as errors:
            worker = Forked(
                "tests.celery.storm_worker", task.text(), stdout=subprocess.DEVNULL, stderr=errors,
                env={**os.environ, "C_FORCE_ROOT": "1"},
            )  # fmt: skip
        self._workers.append((worker, pool))

    def _look(self) -> None:
        """Do the next fault, if its time has come."""
        if not self._faults or time.monotonic() < self._fault_at:
            return
        fault = self._faults[-1]
        if getattr(self, f"_do_{fault}")():
            self._faults.pop()
            self._fired[fault] += 1
            self._fault_at = time.monotonic() + self._rng.uniform(0.3, 1.2)

    def _do_child(self) -> bool:
        """Kill a child of prefork, if one runs a task. Children are known by their log."""
        runs = [run for each in self.books.runs().values() for run in each]
        children = {
            child.pid
            for worker, pool in self._workers
            if pool is PREFORK
            for child in psutil.Process(worker.pid).children()
        }
        busy = sorted({run.pid for run in runs if run.end is None} & children)
        if not busy:
            return False
        self._kill(self._rng.choice(busy))
        return True

    def _do_worker(self) -> bool:
        """Kill a worker, once it has run a task; with its children, or without them."""
        active = {run.worker for each in self.books.runs().values() for run in each}
        found = [each for each in self._workers if each[0].pid in active]
        if not found:
            return False
        worker, pool = self._rng.choice(found)
        children = psutil.Process(worker.pid).children()
        self._kill(worker.pid)
        if self._rng.random() < 0.5:
            for child in children:
                self._kill(child.pid)
        worker.wait()
        self._workers.remove((worker, pool))
        self._start(pool)
        return True

    def _do_redis(self) -> bool:
        if self._is_failing():
            return False
        rng = random.Random(self._rng.random())
        self._failing = self._thread.submit(self._place.fail, rng)
        return True

    def _is_failing(self) -> bool:
        if self._failing is not None and self._failing.done():
            self._failing.result()
            self._failing = None
        return self._failing is not None

    def _kill(self, pid: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self.books.killed[pid] = time.time()

    def _end(self) -> None:
        for worker, _ in self._workers:
            with suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
        self._thread.shutdown()
        kombu.pools.reset()
        self._app.close()
        self._client.close()


def played(kind: str, folder: Path, stem: str, rng: random.Random) -> Played:
    """Play a storm, and insist that it breaks no promise."""
    with opened(kind) as place:
        found = Storm(place, folder, stem, rng).run()
    insist(not found.wrong, (kind, found.figures, found.wrong[:5]))
    return Played(f"{kind}: {found.figures}", Counter())
