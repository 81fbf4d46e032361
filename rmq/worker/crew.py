"""A crew serves one handler: one thread takes messages, hands run them, one thread settles.

fetch     takes as many as there is room for, and gives them to the hands
hands     run the handler (`rmq.worker.hands`), and report a ruling for each delivery
settler   carries out what was ruled (`rmq.worker.settler`)
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from rmq.consumer import Delivery
from rmq.delivery import LOST, OPEN, DeliveryData
from rmq.errors import RMQError
from rmq.handler import Handler
from rmq.interceptor import Hooks
from rmq.settings import BATCH_MAX
from rmq.worker.desk import Desk
from rmq.worker.hands import Hands, Tasks, Threads, Work
from rmq.worker.kept import KeptClaims
from rmq.worker.runner import ACK, BACK, SUSPECT, Halt, Overrun, Ruling, Runner
from rmq.worker.settler import PAUSE_MOST_S, PAUSE_S, Settler, Trouble

log = logging.getLogger("rmq")

WAIT_S = 1.0  # one turn of the fetcher without messages; a turn is a sign of life
GATHER_S = 0.001  # for more messages to come, where over ...
GATHER_RATE = 2500  # ... of them come in a second, each take finding less than ...
FEW = 20
SUSPECT_WAIT_S = 1.0  # until a suspect is tried again that met another one
WAIT_MOST_S = 10.0  # for what a suspect must not take with it
IN_ORDER = 50  # messages of a slot in one hand; while they are, no other worker has the slot


def most_held(handler: Handler) -> int:
    """How many deliveries a handler's crew may have in hand."""
    return handler.concurrency * IN_ORDER if handler.ordered else handler.prefetch


def left(until: float) -> float:
    """Seconds from now to a time of the monotonic clock, at least 0."""
    return max(0.0, until - time.monotonic())


class Crew:
    """Everything that serves one handler."""

    def __init__(
        self, handler: Handler, desk: Desk, hooks: Hooks, loop: asyncio.AbstractEventLoop | None
    ) -> None:
        self.handler = handler
        self.desk = desk
        self.kept = None if handler.claims is None else KeptClaims(desk._executor, handler)
        self.runner = Runner(handler, hooks, self.kept)
        self.taken = 0
        self.turned = time.monotonic()  # when the fetcher last came round
        self.trouble = Trouble(handler)
        self._stopping = threading.Event()
        self._moved = threading.Event()  # something was settled: there is room
        self._pending: list[Delivery] = []  # of a batch that waits for more
        self._pending_since = 0.0
        self._free = threading.Semaphore(handler.concurrency)  # hands of an ordered crew
        self._took = 0.0  # when the last messages were taken
        self._limits: dict[DeliveryData, tuple[float, float]] = {}  # when each is overdue, limit
        self._limiting = threading.Lock()  # a run ends in time or late, not both
        self._suspects: set[DeliveryData] = set()  # that run now, and may kill this process
        self._turn = threading.Condition()  # suspects begin one at a time
        self._undecided = 0  # hands that look whether theirs is one
        self._suspect_below = 0.0
        self.settler = Settler(handler, desk, self.runner.overran, self.trouble, self._moved)
        self._overdue = self.settler.overdue
        self._hands = self._make_hands(loop)
        name = f"rmq-{handler.handle.name}"
        self._fetcher = threading.Thread(target=self._fetch, name=f"{name}-fetch", daemon=True)

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
        return self.taken - self.settler.finished

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
                self.trouble.found(error)
                self._moved.wait(pause)
                pause = min(pause * 2, PAUSE_MOST_S)
                continue
            if room:
                self.trouble.is_over()
                pause = PAUSE_S
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
            if self._trickles(len(found)):
                time.sleep(GATHER_S)

    def _trickles(self, count: int) -> bool:
        """Whether many messages come a few at a time: then some time lets them gather.

        Each take and each ack is then for several, and what that saves of a machine's time its
        producers have. A message that comes alone is never kept waiting.
        """
        now = time.monotonic()
        gap, self._took = now - self._took, now if count else self._took
        return 0 < count < FEW and count > gap * GATHER_RATE and not self.handler.ordered

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

    # --- in the hands ----------------------------------------------------------------------------

    def _may_start(self, one: DeliveryData) -> bool:
        """Whether this one is still ours; what is lost is put aside."""
        if time.monotonic() >= one._origin.until and one.lost:
            one._state = LOST
            self._report(one, ACK)
            return False
        if one._claim is not None and self.desk.board.claim_lost(one):
            self._report(one, BACK)  # it is claimed anew when it comes again
            return False
        return one._score % 1000 >= self._suspect_below or self._suspect_may_start(one)

    def _suspect_may_start(self, one: DeliveryData) -> bool:
        """A message that may kill this process begins when nothing else waits to begin in it.

        Of two such messages one goes back, for a while: beside each other they would die together
        each time, though one of them alone is to blame.
        """
        with self._turn:
            self._undecided += 1
        try:
            if not self.desk.crashed_before(one):
                return True
            with self._turn:
                alone = not self._suspects
                if alone:
                    self._suspects.add(one)
            if not alone:
                self._hand_back_now([one], Ruling("release", SUSPECT_WAIT_S))
                return False
            self._hand_back_now(self._hands.take_back())
        finally:
            with self._turn:
                self._undecided -= 1
                self._turn.notify_all()
        with self._turn:
            self._turn.wait_for(lambda: not self._undecided, WAIT_MOST_S)
        return True

    def _hand_back_now(self, works: Sequence[Work], ruling: Ruling = BACK) -> None:
        """Give these back, and wait for it: this process may be about to end."""
        for work in works:
            self._give_back(work, ruling)
        self.settler.wait(WAIT_MOST_S)

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
            self._report(one, await self._run_async(one))

    async def _run_async(self, one: DeliveryData) -> Ruling:
        try:
            return await self.runner.run_async(one)
        except asyncio.CancelledError as error:
            return self._cancelled(error)

    def _cancelled(self, error: BaseException) -> Ruling:
        """The worker is stopping; else a hook did it, which must not go on for ever uncounted."""
        return BACK if self._stopping.is_set() else Ruling("nack", None, error)

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
        except asyncio.CancelledError as error:
            rulings = [(one, self._cancelled(error)) for one in ready]
        for one, ruling in rulings:
            self._report(one, ruling)

    def _in_order(self, run: list[DeliveryData]) -> None:
        try:
            for place, one in enumerate(run):
                if self._stopping.is_set():
                    self.settler.put(Halt(None, run[place:]))
                    break
                if not self._may_start(one):
                    self.settler.put(Halt(None, run[place + 1 :]))
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
                    self.settler.put(Halt(None, run[place:]))
                    break
                if not await self._may_start_async(one):
                    self.settler.put(Halt(None, run[place + 1 :]))
                    break
                if self._halts(run, place, await self._run_async(one)):
                    break
        finally:
            self._free.release()

    def _halts(self, run: list[DeliveryData], place: int, ruling: Ruling) -> bool:
        """Report one of an ordered run; whether those behind it have to wait."""
        one, rest = run[place], run[place + 1 :]
        self._over(one)
        if one in self._overdue:  # it was given back when its time was over
            self._overdue.discard(one)
            self.settler.put(Halt(None, rest))
            return True
        if ruling.verb in ("ack", "reject") and one._state == OPEN:
            self._report(one, ruling)
            return False
        # Failed, or settled by the handler itself, who knows how.
        self.settler.put(Halt((one, ruling), rest))
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
        self.settler.put(one if ruling is ACK else (one, ruling))

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

    def _give_back(self, work: Work, ruling: Ruling = BACK) -> None:
        for one in work if isinstance(work, list) else [work]:
            self._report(one, ruling)

    def watch(self) -> None:
        """Find what runs for too long; called a few times a second."""
        if self.kept is not None:
            self.kept.look()
        now = time.monotonic()
        for one, (until, seconds) in list(self._limits.items()):
            if now < until:
                continue
            with self._limiting:
                if one not in self._limits:
                    continue  # it has ended just now
                self._overdue.add(one)
                del self._limits[one]
            if self.kept is not None:
                self.kept.keep([one])
            log.error("%s: %s ran for more than %g s", self.handler, one.id, seconds)
            self.settler.put(Overrun(one, seconds))

    # --- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to take messages."""
        self.settler.start()
        self._fetcher.start()

    def stop_taking(self) -> None:
        """Take no more. Returns at once."""
        self._stopping.set()
        self._free.release()
        self.desk._interrupt()
        self._moved.set()

    def hand_back(self, until: float) -> None:
        """Hand back what has not begun. `until`: when not to wait for the fetcher any longer."""
        self._fetcher.join(left(until))
        for work in [*self._hands.take_back(), *self._pending]:
            self._give_back(work)
        self._pending = []
        self._hands.close()

    def join(self, wait_s: float) -> bool:
        """Wait for what runs; whether all of it has ended."""
        return self._hands.join(wait_s)

    def end(self, until: float) -> bool:
        """Cancel what still runs, hand it back, and let go.

        Returns:
            Whether Redis knows what became of every delivery.
        """
        self._hands.cancel(left(until))
        self.settler.end(left(until))
        if self.kept is not None:
            self.kept.keep()
        try:
            self.desk.close()
            self.settler.handed_back(self.held)
        except RMQError as error:
            log.warning("%s: what was in hand waits for its leases to run out: %s",
                        self.handler, error)  # fmt: skip
            return False
        return not self.settler.unsettled
