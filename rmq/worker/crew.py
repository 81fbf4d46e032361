"""A crew serves one handler: one thread takes messages, hands run them, one thread settles.

    fetch     takes as many as there is room for, and gives them to the hands
    hands     run the handler (`rmq.worker.hands`), and report a ruling for each delivery
    settle    gathers rulings and carries them out, all that have come in one call

Settling at once gathers by itself: while a call is under way the next rulings collect.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from rmq.consumer import Delivery
from rmq.delivery import LOST, OPEN, DeliveryData
from rmq.errors import AlreadySettled, RMQError, StorageError
from rmq.handler import Handler
from rmq.interceptor import Hooks
from rmq.settings import BATCH_MAX
from rmq.worker.desk import Desk
from rmq.worker.hands import Hands, Tasks, Threads, Work
from rmq.worker.reports import Reports
from rmq.worker.runner import ACK, BACK, SUSPECT, Halt, Overrun, Ruling, Runner

log = logging.getLogger("rmq")

WAIT_S = 1.0  # one turn of the fetcher without messages; a turn is a sign of life
PAUSE_S, PAUSE_MOST_S = 0.1, 5.0  # after a failed turn
WAIT_MOST_S = 10.0  # for what a suspect must not take with it
IN_ORDER = 50  # messages of a slot in one hand; while they are, no other worker has the slot


def most_held(handler: Handler) -> int:
    """How many deliveries a handler's crew may have in hand."""
    return handler.concurrency * IN_ORDER if handler.ordered else handler.prefetch


class Crew:
    """Everything that serves one handler."""

    def __init__(
        self, handler: Handler, desk: Desk, hooks: Hooks, loop: asyncio.AbstractEventLoop | None
    ) -> None:
        self.handler = handler
        self.desk = desk
        self.runner = Runner(handler, hooks)
        self.taken = self.finished = 0  # each written by one thread: fetch, settle
        self.tally = {"ack": 0, "nack": 0, "reject": 0, "release": 0, "lost": 0, "own": 0}
        self.turned = time.monotonic()  # when the fetcher last came round
        self.settling_since = 0.0  # when the call to settle began that is under way
        self.trouble: RMQError | None = None
        self._stopping = threading.Event()
        self._abandoned = False
        self._moved = threading.Event()
        self._done: SimpleQueue[Any] = SimpleQueue()
        self._pending: list[Delivery] = []  # of a batch that waits for more
        self._pending_since = 0.0
        self._free = threading.Semaphore(handler.concurrency)  # hands of an ordered crew
        self._limits: dict[DeliveryData, tuple[float, float]] = {}  # when each is overdue, limit
        self._overdue: set[DeliveryData] = set()
        self._limiting = threading.Lock()  # a run ends in time or late, not both
        self._suspects: set[DeliveryData] = set()  # that run now, and may kill this process
        self._suspect_below = 0.0
        self._hands = self._make_hands(loop)
        name = f"rmq-{handler.handle.name}"
        self._fetcher = threading.Thread(target=self._fetch, name=f"{name}-fetch", daemon=True)
        self._settler = threading.Thread(target=self._settle, name=f"{name}-settle", daemon=True)

    def _make_hands(self, loop: asyncio.AbstractEventLoop | None) -> Hands:
        handler = self.handler
        if loop is not None:
            run: Callable[[Any], Coroutine[Any, Any, None]] = self._one_async
            if handler.ordered:
                run = self._in_order_async
            elif handler.batch:
                run = self._batch_async
            return Tasks(handler.concurrency, run, self._spoilt, loop)
        work: Callable[[Work], None] = self._one
        if handler.ordered:
            work = self._in_order
        elif handler.batch:
            work = self._batch
        name = f"rmq-{handler.handle.name}"
        return Threads(name, handler.concurrency, work, self._spoilt)

    # --- fetch -----------------------------------------------------------------------------------

    @property
    def held(self) -> int:
        """Deliveries in hand: waiting, running, or about to be settled."""
        return self.taken - self.finished

    def _room(self) -> int:
        """How many to take now; 0 while it is better to wait for more room."""
        handler, held = self.handler, self.held
        room = self._most() - held
        enough = 1 if held < handler.concurrency else max(1, handler.prefetch // 4)
        return min(room, BATCH_MAX) if room >= enough else 0

    def _most(self) -> int:
        """How many to hold: while a suspect runs, nothing that would wait behind it."""
        if not self._suspects:
            return self.handler.prefetch
        return 0 if self.handler.batch else self.handler.concurrency

    def _fetch(self) -> None:
        pause, has_hand = PAUSE_S, False
        while not self._stopping.is_set():
            self._moved.clear()
            self.turned = time.monotonic()
            if self.handler.ordered:
                has_hand = has_hand or self._free.acquire(timeout=WAIT_S)
                room = IN_ORDER if has_hand else 0
            else:
                room = self._room()
                if not room:
                    self._moved.wait(min(WAIT_S, self._patience()))
            if self._stopping.is_set():
                return
            try:
                found = self.desk.take(room, self._patience()) if room else []
            except Exception as error:
                self._failed(error)
                self._moved.wait(pause)
                pause = min(pause * 2, PAUSE_MOST_S)
                continue
            if room:
                self.trouble, pause = None, PAUSE_S
            self.taken += len(found)
            if self._stopping.is_set():
                self._give_back(found)
                return
            if self._suspects and not self.handler.ordered:
                found = self._stand_back(found)
            if found and not self._suspect_below:
                self._suspect_below = self.desk._handle.settings.max_retries - SUSPECT + 2
            if self.handler.ordered:
                if found:
                    self._hands.put([found])
                    has_hand = False
            elif self.handler.batch:
                self._gather(found)
            elif found:
                self._hands.put(found)

    def _stand_back(self, found: list[Delivery]) -> list[Delivery]:
        """A suspect began while these were taken: keep what can begin at once."""
        self._give_back(self._pending)
        self._pending = []
        keep = max(0, len(found) - max(0, self.held - self._most()))
        self._give_back(found[keep:])
        return found[:keep]

    def _patience(self) -> float:
        """How long to wait for messages."""
        if not self._pending:
            return WAIT_S
        return max(0.0, self._pending_since + self.handler.linger_s - time.monotonic())

    def _gather(self, found: list[Delivery]) -> None:
        """Make batches; one that is not full waits for `linger`."""
        size = self.handler.batch
        if not self._pending:
            self._pending_since = time.monotonic()
        self._pending += found
        works = []
        while len(self._pending) >= size:
            works.append(self._pending[:size])
            self._pending = self._pending[size:]
        if works:
            self._pending_since = time.monotonic()  # what is left has come just now
        if self._pending and self._patience() <= 0:
            works.append(self._pending)
            self._pending = []
        if works:
            self._hands.put(works)

    def _failed(self, error: Exception) -> None:
        """A turn failed: say so once, and go on."""
        known = (
            error if isinstance(error, RMQError) else RMQError(f"{type(error).__name__}: {error}")
        )
        if self.trouble is None or type(self.trouble) is not type(known):
            log.error("%s cannot take messages, and goes on trying: %s", self.handler, error)
            if not isinstance(error, RMQError):
                log.exception("unexpected")
        self.trouble = known

    # --- in the hands ----------------------------------------------------------------------------

    def _may_start(self, one: DeliveryData) -> bool:
        """Whether this one is still ours; what is lost is put aside."""
        if time.monotonic() >= one._origin.until and one.lost:
            one._state = LOST
            self._report(one, ACK)
            return False
        if one._score % 1000 < self._suspect_below and self.desk.crashed_before(one):
            self._suspects.add(one)
            self._hand_back_now(self._hands.take_back())
        return True

    def _hand_back_now(self, works: Sequence[Work]) -> None:
        """Give these back, and wait for it: this process may be about to end."""
        for work in works:
            self._give_back(work)
        done = threading.Event()
        self._done.put(done)
        done.wait(WAIT_MOST_S)

    def _alone(self, batch: list[DeliveryData]) -> list[DeliveryData]:
        """A suspect goes by itself; those beside it go back."""
        first = [one for one in batch if one in self._suspects][:1]
        if first and len(batch) > 1:
            self._hand_back_now([one for one in batch if one not in first])
        return first or batch

    def _one(self, one: DeliveryData) -> None:
        if self._may_start(one):
            self._begin(one)
            self._report(one, self.runner.run(one))

    async def _one_async(self, one: DeliveryData) -> None:
        if await self._may_start_async(one):
            try:
                ruling = await self.runner.run_async(one)
            except asyncio.CancelledError:
                ruling = BACK  # the worker is stopping
            self._report(one, ruling)

    async def _may_start_async(self, one: DeliveryData) -> bool:
        if one._score % 1000 < self._suspect_below:
            return await asyncio.to_thread(self._may_start, one)
        return self._may_start(one)

    def _batch(self, batch: list[DeliveryData]) -> None:
        ready = self._alone([one for one in batch if self._may_start(one)])
        for one in ready:
            self._begin(one)
        for one, ruling in self.runner.run_batch(ready):
            self._report(one, ruling)

    async def _batch_async(self, batch: list[DeliveryData]) -> None:
        ready = [one for one in batch if await self._may_start_async(one)]
        if self._suspects:
            ready = await asyncio.to_thread(self._alone, ready)
        try:
            rulings = await self.runner.run_batch_async(ready)
        except asyncio.CancelledError:
            rulings = [(one, BACK) for one in ready]
        for one, ruling in rulings:
            self._report(one, ruling)

    def _in_order(self, run: list[DeliveryData]) -> None:
        try:
            for place, one in enumerate(run):
                if self._stopping.is_set():
                    self._done.put(Halt(None, run[place:]))
                    break
                if not self._may_start(one):
                    self._done.put(Halt(None, run[place + 1 :]))
                    break
                self._begin(one)
                if self._halts(run, place, self.runner.run(one)):
                    break
        finally:
            self._free.release()

    async def _in_order_async(self, run: list[DeliveryData]) -> None:
        try:
            for place, one in enumerate(run):
                if self._stopping.is_set():
                    self._done.put(Halt(None, run[place:]))
                    break
                if not await self._may_start_async(one):
                    self._done.put(Halt(None, run[place + 1 :]))
                    break
                try:
                    ruling = await self.runner.run_async(one)
                except asyncio.CancelledError:
                    ruling = BACK
                if self._halts(run, place, ruling):
                    break
        finally:
            self._free.release()

    def _halts(self, run: list[DeliveryData], place: int, ruling: Ruling) -> bool:
        """Report one of an ordered run; whether those behind it have to wait."""
        one, rest = run[place], run[place + 1 :]
        self._over(one)
        if one in self._overdue:  # it was given back when its time was over
            self._overdue.discard(one)
            self._done.put(Halt(None, rest))
            return True
        if ruling.verb in ("ack", "reject") and one._state == OPEN:
            self._report(one, ruling)
            return False
        # Failed, or settled by the handler itself, who knows how.
        self._done.put(Halt((one, ruling), rest))
        return True

    def _begin(self, one: DeliveryData) -> None:
        """Note when a plain function has to be done; a task is cancelled by its own timer."""
        seconds = self.handler.runtime_of(one)
        if seconds is not None:
            until = time.monotonic() + seconds
            self._limits[one] = until, seconds
            self.desk.board.limit(one, until)

    def _report(self, one: DeliveryData, ruling: Ruling) -> None:
        self._over(one)
        self._done.put(one if ruling is ACK else (one, ruling))

    def _over(self, one: DeliveryData) -> None:
        """It runs no longer, or never did."""
        if self._limits:
            with self._limiting:
                self._limits.pop(one, None)
        if self._suspects:
            self._suspects.discard(one)

    def _spoilt(self, work: Work, error: BaseException) -> None:
        """Something of ours raised in a hand; the messages must not hang."""
        log.error("%s: unexpected", self.handler, exc_info=error)
        for one in work if isinstance(work, list) else [work]:
            self._report(one, Ruling("nack", None, error))

    def _give_back(self, work: Work) -> None:
        for one in work if isinstance(work, list) else [work]:
            self._report(one, BACK)

    def watch(self) -> None:
        """Find what runs for too long; called a few times a second."""
        now = time.monotonic()
        for one, (until, seconds) in list(self._limits.items()):
            if now < until:
                continue
            with self._limiting:
                if one not in self._limits:
                    continue  # it has ended just now
                self._overdue.add(one)
                del self._limits[one]
            log.error("%s: %s ran for more than %g s", self.handler, one.id, seconds)
            self._done.put(Overrun(one, seconds))

    # --- settle ----------------------------------------------------------------------------------

    def _settle(self) -> None:
        get, get_nowait = self._done.get, self._done.get_nowait
        running = True
        while running:
            items = [get()]
            try:
                while len(items) < BATCH_MAX:
                    items.append(get_nowait())
            except Empty:
                pass
            if None in items:
                items = [item for item in items if item is not None]
                running = False
            self.settling_since = time.monotonic()
            self._carry_out(items)
            self.settling_since = 0.0
            self._moved.set()

    def _carry_out(self, items: list[Any]) -> None:
        """Settle what was reported, each kind in one call."""
        found = Reports(items, self._overdue, self.runner.overran)
        self._do("ack", found.acks, self.desk.ack)
        self._others(found.others)
        for one in found.late:
            one._state = LOST  # told to the handler that still runs
        for halt in found.halts:
            self._do("release", halt.rest, self.desk.release)
            if halt.failed is not None:
                self._others([halt.failed])
        for event in found.awaited:
            event.set()

    def _others(self, rulings: Sequence[tuple[DeliveryData, Ruling]]) -> None:
        failed: dict[float | None, list[tuple[DeliveryData, Any]]] = {}
        back: dict[float, list[DeliveryData]] = {}
        for one, ruling in rulings:
            if ruling.verb == "ack":
                self._do("ack", [one], self.desk.ack)
            elif ruling.verb == "nack":
                failed.setdefault(ruling.wait_s, []).append((one, ruling.error))
            elif ruling.verb == "release":
                back.setdefault(ruling.wait_s or 0.0, []).append(one)
            else:
                told, kind = ruling.error or "rejected", ruling.kind
                self._do("reject", [one], partial(self.desk.bury, reason=told, kind=kind))
                self._tell(one, "is rejected", told)
        for wait_s, pairs in failed.items():
            errors: dict[Any, Any] = dict(pairs)
            self._do(
                "nack",
                [one for one, _ in pairs],
                partial(self.desk.fail, wait_s=wait_s, errors=errors),
            )
            for one, error in pairs:
                dead = "" if one.retries_left else ", and is a dead letter"
                self._tell(one, f"failed{dead}", error)
        for delay, some in back.items():
            self._do("release", some, partial(self.desk.release, delay=delay))

    def _tell(self, one: DeliveryData, what: str, error: BaseException | str | None) -> None:
        """One line for what went wrong; the traceback is in the message, and in a debug log."""
        trace = None
        if isinstance(error, BaseException):
            trace = error if log.isEnabledFor(logging.DEBUG) else None
            error = f"{type(error).__name__}: {error}"
        log.warning(
            "%s: %s, attempt %d, %s: %s", self.handler.name, one.id, one.attempt, what, error,
            exc_info=trace,
        )  # fmt: skip

    def _do(
        self, verb: str, some: list[DeliveryData], call: Callable[[list[Any]], list[Any]]
    ) -> None:
        """Settle these, however long Redis is away; give up only what it refuses."""
        pause, left, trouble = PAUSE_S, some, None
        while True:
            left = [one for one in left if one._state == OPEN]
            try:
                lost = call(left) if left else []
                if trouble is not None and self.trouble is trouble:
                    self.trouble = None
                self.tally[verb] += len(left) - len(lost)
                if lost:
                    self.tally["lost"] += len(lost)
                    log.warning(
                        "%s: the lease of %s%s had run out before it could be settled (%s); it is "
                        "delivered again", self.handler, lost[0].id,
                        f" and {len(lost) - 1} more" if len(lost) > 1 else "", verb,
                    )  # fmt: skip
                break
            except AlreadySettled:
                continue  # by the handler itself, between two lines of ours
            except StorageError as error:
                self._failed(error)
                trouble = self.trouble
                if self._abandoned:
                    break
                self._moved.wait(pause)
                pause = min(pause * 2, PAUSE_MOST_S)
            except Exception:
                log.exception("%s: %d deliveries could not be settled (%s); their leases run out",
                              self.handler, len(left), verb)  # fmt: skip
                self.desk.board.leave(left)
                break
        self.tally["own"] += len(some) - len(left)
        self.desk.board.leave(one for one in some if one._state != OPEN)
        self.finished += len(some)

    # --- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to take messages."""
        self._settler.start()
        self._fetcher.start()

    def stop_taking(self) -> None:
        """Take no more. Returns at once."""
        self._stopping.set()
        self._free.release()
        self.desk._interrupt()
        self._moved.set()

    def hand_back(self, wait_s: float) -> None:
        """Hand back what has not begun. `wait_s`: for the fetcher to come to its end."""
        self._fetcher.join(wait_s)
        for work in [*self._hands.take_back(), *self._pending]:
            self._give_back(work)
        self._pending = []
        self._hands.close()

    def join(self, wait_s: float) -> bool:
        """Wait for what runs; whether all of it has ended."""
        return self._hands.join(wait_s)

    def end(self, wait_s: float) -> None:
        """Cancel what still runs, hand it back, and let go."""
        self._hands.cancel(wait_s)
        self._abandoned = True
        self._done.put(None)
        self._settler.join(wait_s)
        try:
            self.desk.close()
            self.tally["release"] += self.held
            self.finished = self.taken
        except RMQError as error:
            log.warning("%s: what was in hand waits for its leases to run out: %s",
                        self.handler, error)  # fmt: skip
