"""A crew serves one handler: one thread takes messages, hands run them, one thread settles.

fetch     takes as many as there is room for, and gives them to the hands
hands     run the handler (`rmq.worker.executors`), and report a ruling for each delivery
settler   carries out what was ruled (`rmq.worker.settler`)
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from rmq.client.consumer import Delivery
from rmq.client.handler import Handler
from rmq.core.delivery import LOST, OPEN, DeliveryData
from rmq.core.interceptor import Hooks
from rmq.core.settings import BATCH_MAX
from rmq.errors import RMQError
from rmq.worker.detached_claims import KeptClaims
from rmq.worker.event_loop import Beat
from rmq.worker.executors import Hands, Tasks, Threads, Work
from rmq.worker.leased_consumer import Desk
from rmq.worker.poison_messages import FROM_DELIVERY, Suspects
from rmq.worker.prefetch import Pace, Trickle
from rmq.worker.runner import ACK, BACK, Halt, Overrun, Ruling, Runner
from rmq.worker.settler import PAUSE_MOST_S, PAUSE_S, Settler, Trouble

log = logging.getLogger("rmq")

WAIT_S = 1.0  # one turn of the fetcher without messages; a turn is a sign of life
GATHER_S = 0.001  # for more messages to come, where they trickle
WAIT_MOST_S = 10.0  # for what a suspect must not take with it
CANCEL_S = 1.0  # for a task to end that was cancelled at its limit
BLOCKED_S = 1.0  # an event loop in which nothing runs for so long gets no more work
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
        self,
        handler: Handler,
        desk: Desk,
        hooks: Hooks,
        loop: asyncio.AbstractEventLoop | None,
        beat: Beat | None = None,
    ) -> None:
        self.handler = handler
        self.desk = desk
        self.kept = None if handler.claims is None else KeptClaims(desk._transport, handler)
        self.runner = Runner(handler, hooks, self.kept)
        self.taken = 0
        self.turned = time.monotonic()  # when the fetcher last came round
        self.trouble = Trouble(handler)
        self._stopping = threading.Event()
        self._moved = threading.Event()  # something was settled: there is room
        self._pending: list[Delivery] = []  # of a batch that waits for more
        self._pending_since = 0.0
        self._free = threading.Semaphore(handler.concurrency)  # hands of an ordered crew
        self._has_hand = False  # the fetcher of an ordered crew, for its next run
        self._trickle = Trickle()
        self._limits: dict[DeliveryData, tuple[float, float]] = {}  # when each is overdue, limit
        self._limiting = threading.Lock()  # a run ends in time or late, not both
        self._behind: dict[DeliveryData, list[DeliveryData]] = {}  # what waits for it, in order
        self._suspects = Suspects()
        self._suspect_below = 0.0
        self.pace = Pace(
            handler.concurrency, max(1, handler.batch), handler.prefetch, handler.is_prefetch_chosen
        )
        self.hung_since = 0.0  # since when every hand is beyond its limit; 0: some is not
        self._beat = beat
        self.settler = Settler(handler, desk, self.runner.overran, self.trouble, self._moved)
        self._overdue = self.settler.overdue
        self._hands = self._make_hands(loop)
        name = f"rmq-{handler.context.name}"
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
        name = f"rmq-{handler.context.name}"
        return Threads(name, handler.concurrency, work, self._spoilt)

    # --- fetch -----------------------------------------------------------------------------------

    @property
    def held(self) -> int:
        """Deliveries in hand: waiting, running, or about to be settled."""
        return self.taken - self.settler.finished

    def hung(self) -> int:
        """How many hands are at a run beyond its limit: they have no delivery, and do not return.

        With `max_runtime`, a thread that hangs, or a task that swallows its cancellation.
        """
        if not self._overdue:
            return 0
        return sum(one in self._overdue for one in list(self.pace.running))

    def lag(self) -> float:
        """For how long the event loop of this handler has run nothing, seconds."""
        return 0.0 if self._beat is None else self._beat.lag()

    def _room(self) -> int:
        """How many to take now; 0 while it is better to wait for more room."""
        handler, held, hung = self.handler, self.held, self.hung()
        most = self._most(hung)
        room, hands = most - held, handler.concurrency - hung
        spare = min(handler.prefetch // 4, (most - hands) // 2)
        enough = 1 if held < hands else max(1, spare)
        return min(room, BATCH_MAX) if room >= enough else 0

    def _most(self, hung: int) -> int:
        """How many to hold: while a suspect runs, nothing that would wait behind it."""
        if self.lag() > BLOCKED_S:
            return 0
        most = self.pace.most(hung)
        if not self._suspects.running:
            return most
        return 0 if self.handler.batch else min(most, self.handler.concurrency - hung)

    def _fetch(self) -> None:
        pause = PAUSE_S
        while not self._stopping.is_set():
            try:
                if self._fetch_once():
                    self.trouble.is_over()
                    pause = PAUSE_S
            except Exception as error:
                self.trouble.found(error)
                self._moved.wait(pause)
                pause = min(pause * 2, PAUSE_MOST_S)

    def _fetch_once(self) -> bool:
        """Take what there is room for, and give it to the hands; whether Redis was asked."""
        self._moved.clear()
        self.turned = time.monotonic()
        if self.handler.ordered:
            self._has_hand = self._has_hand or self._free.acquire(timeout=WAIT_S)
            room = IN_ORDER if self._has_hand and self.lag() <= BLOCKED_S else 0
            if self._has_hand and not room:
                self._moved.wait(WAIT_S)
        else:
            room = self._room()
            if not room:
                self._moved.wait(min(WAIT_S, self._patience()))
        if self._stopping.is_set():
            return False
        found = self.desk.take(room, self._patience()) if room else []
        self.taken += len(found)
        if self._stopping.is_set():
            self._give_back(found)
            return False
        try:
            self._hand_out(found)
        except Exception as error:
            self._spoilt(found, error)
            raise
        if self._trickle.goes_on(len(found)) and not self.handler.ordered:
            time.sleep(GATHER_S)
        return room > 0

    def _hand_out(self, found: list[Delivery]) -> None:
        """Give what was taken to the hands; suspects by themselves, and only those in turn."""
        if found and not self._suspect_below:
            retries = self.desk._context.settings.max_retries
            self._suspect_below = retries - FROM_DELIVERY + 2
        old = [one for one in found if one._score % 1000 < self._suspect_below]
        lapsed = self.desk.lapsed(old) if old else set()
        if self.handler.ordered:
            run = self._cut(found, lapsed) if lapsed else found
            if run:
                self._has_hand = False
                self._hands.put([run])
            return
        if lapsed or self._suspects.running:
            found = self._isolate(found, lapsed)
        if self.handler.batch:
            self._gather(found)
        elif found:
            self._hands.put(found)

    def _isolate(self, found: list[Delivery], lapsed: set[DeliveryData]) -> list[Delivery]:
        """Begin the suspects that may; what could only wait beside one goes back.

        Returns:
            What else can begin at once.
        """
        mine = [one for one in found if one in lapsed]
        others = [one for one in found if one not in lapsed]
        free = self.handler.concurrency - len(self.pace.running)
        begin: list[Delivery] = []
        for one in mine:
            if len(begin) < free and self._suspects.begin(one, one.attempt):
                begin.append(one)
            else:
                self._give_back(one, Ruling("release", self._suspects.wait_s()))
        if not self._suspects.running:
            return others
        self._give_back([*self._pending, *others[max(0, free - len(begin)) :]])
        self._pending = []
        others = others[: max(0, free - len(begin))]
        if self.handler.batch:  # to fill a batch is to wait
            self._give_back(others)
            others = []
        if begin:
            # This process may be about to end: what is done is to be known before.
            self._hand_back_now(self._hands.take_back())
            self._hands.put([[one] for one in begin] if self.handler.batch else begin)
        return others

    def _cut(self, run: list[Delivery], lapsed: set[DeliveryData]) -> list[Delivery]:
        """What of a run in order can be given to a hand: up to a suspect, or that one alone."""
        place = next(n for n, one in enumerate(run) if one in lapsed)
        if place:
            self.settler.put(Halt(None, list(run[place:])))
            return run[:place]
        first = run[0]
        if self._suspects.begin(first, first.attempt):
            self.settler.put(Halt(None, list(run[1:])))
            self.settler.wait(WAIT_MOST_S)
            return [first]
        wait = Ruling("release", self._suspects.wait_s())
        self.settler.put(Halt((first, wait), list(run[1:])))
        return []

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
        return True

    def _hand_back_now(self, works: Sequence[Work]) -> None:
        """Give these back, and wait until all that was reported is settled."""
        for work in works:
            self._give_back(work)
        self.settler.wait(WAIT_MOST_S)

    def _one(self, one: DeliveryData) -> None:
        if self._may_start(one):
            self._begin([one])
            self._report(one, self.runner.run(one))

    async def _one_async(self, one: DeliveryData) -> None:
        if self._may_start(one):
            self._begin([one], CANCEL_S)
            self._report(one, await self._run_async(one))

    async def _run_async(self, one: DeliveryData) -> Ruling:
        try:
            return await self.runner.run_async(one)
        except asyncio.CancelledError as error:
            return self._cancelled(error)

    def _cancelled(self, error: BaseException) -> Ruling:
        """The worker is stopping; else a hook did it, which must not go on for ever uncounted."""
        return BACK if self._stopping.is_set() else Ruling("nack", None, error)

    def _batch(self, batch: list[DeliveryData]) -> None:
        ready = [one for one in batch if self._may_start(one)]
        if ready:
            self._begin(ready)
        for one, ruling in self.runner.run_batch(ready):
            self._report(one, ruling)

    async def _batch_async(self, batch: list[DeliveryData]) -> None:
        ready = [one for one in batch if self._may_start(one)]
        if ready:
            self._begin(ready, CANCEL_S)
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
                self._behind[one] = run[place + 1 :]
                self._begin([one])
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
                if not self._may_start(one):
                    self.settler.put(Halt(None, run[place + 1 :]))
                    break
                self._behind[one] = run[place + 1 :]
                self._begin([one], CANCEL_S)
                if self._halts(run, place, await self._run_async(one)):
                    break
        finally:
            self._free.release()

    def _halts(self, run: list[DeliveryData], place: int, ruling: Ruling) -> bool:
        """Report one of an ordered run; whether those behind it have to wait."""
        one, rest = run[place], run[place + 1 :]
        self._over(one)
        if one in self._overdue:  # given back when its time was over, and the rest before it
            self._overdue.discard(one)
            return True
        if ruling.verb in ("ack", "reject") and one._state == OPEN:
            self._report(one, ruling)
            return False
        # Failed, or settled by the handler itself, who knows how.
        self.settler.put(Halt((one, ruling), rest))
        return True

    def _begin(self, batch: list[DeliveryData], more_s: float = 0.0) -> None:
        """A run begins; the first of its deliveries stands for it.

        Args:
            batch: its deliveries; most runs have one.
            more_s: for a task, which its own timer cancels, to come to its end.
        """
        self.pace.begin(batch[0])
        begun, runtime_of = self.desk.board.begun, self.handler.runtime_of
        for one in batch:
            begun(one)
            seconds = runtime_of(one)
            if seconds is not None:
                until = time.monotonic() + seconds + more_s
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
        began = self.pace.end(one)
        if self._behind:
            self._behind.pop(one, None)
        if self._suspects.running:
            self._suspects.end(one, began)

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
                rest = self._behind.pop(one, [])
            if self.kept is not None:
                self.kept.keep([one])
            log.error("%s: %s ran for more than %g s", self.handler, one.id, seconds)
            self.settler.put(Overrun(one, seconds, rest))
        all_hung = self.hung() >= self.handler.concurrency
        self.hung_since = (self.hung_since or now) if all_hung else 0.0
        if all_hung or self.lag() > BLOCKED_S or self.pace.is_stalled():
            for work in self._hands.take_back() if self._hands.waiting() else []:
                self._give_back(work)
                if self.handler.ordered:
                    self._free.release()

    def give_up(self) -> None:
        """Renew what runs no longer: nothing moves here any more, and others have to do it."""
        for one in list(self.pace.running):
            self.desk.board.limit(one, 0.0)

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
