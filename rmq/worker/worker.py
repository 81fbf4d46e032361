"""The worker: a crew for each handler of a client, one keeper of leases, a watch over them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from queue import Empty, SimpleQueue
from types import FrameType

from rmq.audit import Audit
from rmq.client import AsyncClient, Client
from rmq.errors import (
    ConfigurationError,
    InvalidType,
    InvalidValue,
    StorageError,
    TopicNotFound,
)
from rmq.flows import opening
from rmq.handler import Handler
from rmq.interceptor import Hooks, Interceptor, contained
from rmq.settings import LEASE_MIN_MS
from rmq.units import Duration, milliseconds
from rmq.wire import Executor
from rmq.worker import auditor as auditors
from rmq.worker import keeper as keepers
from rmq.worker.board import Board
from rmq.worker.crew import Crew, most_held
from rmq.worker.desk import Desk
from rmq.worker.loop import Loop
from rmq.worker.watch import WATCH_S, Health, Watch

log = logging.getLogger("rmq")

FINISHED, HANDED_BACK, STUCK = 0, 4, 70
FETCHER_S = 5.0  # for a fetcher that is in the midst of a call
CANCEL_S = 2.0  # for cancelled tasks to come to their end, and for handing back


class Worker:
    """Runs the handlers that are registered on a client.

    Args:
        client: whose handlers, and whose Redis.
        topics: only the handlers of these; None: all.
        interceptors: around handlers, inside those of the client.
        grace: how long a stop waits for running handlers, seconds or timedelta.
        watchdog: `run` ends with exit code 70 when nothing has moved for so long; None: never.
        keeper: where leases are renewed: in a "process" that no handler can starve, or a "thread".

    Raises:
        ConfigurationError: no handler is registered, or none for a topic that is named.
    """

    def __init__(
        self,
        client: Client | AsyncClient,
        *,
        topics: Iterable[str] | None = None,
        interceptors: Sequence[Interceptor] = (),
        grace: Duration = 30.0,
        watchdog: Duration | None = 60.0,
        keeper: keepers.Where = "process",
    ) -> None:
        if not isinstance(client, Client | AsyncClient):
            raise InvalidType(
                f"client: {type(client).__name__}; give rmq.Client or rmq.AsyncClient"
            )
        if keeper not in ("process", "thread"):
            raise InvalidValue(f"keeper: {keeper!r}; give 'process' or 'thread'")
        self._client = client
        self.handlers = _chosen(client, topics)
        self._hooks = Hooks((*client._hooks.chain, *interceptors))
        if not all(one.is_async for one in self.handlers):
            self._hooks.refuse_async("a plain handler", ("before_handle", "after_handle"))
        self._grace_s = milliseconds(grace, "grace", zero=True) / 1000
        self._watchdog_s = (
            None if watchdog is None else milliseconds(watchdog, "watchdog", low_ms=1000) / 1000
        )
        self._where = keeper
        self._crews: list[Crew] = []
        self._executor: Executor | None = None
        self._owns_executor = False
        self._keeper: keepers.KeeperThread | keepers.KeeperProcess | None = None
        self._board: Board | None = None
        self._loop: Loop | None = None
        self._watch: Watch | None = None
        self._auditor: auditors.Auditor | None = None
        self._stopping = threading.Event()
        self._heard: SimpleQueue[int] = SimpleQueue()  # signals: `put` may interrupt itself
        self._told = self._hurry = False  # by a first signal, and by a second
        self._signal = 0
        self._counts: dict[str, dict[str, int]] = {}

    def __repr__(self) -> str:
        return f"<Worker of {', '.join(one.handle.name for one in self.handlers)}>"

    def check(self) -> dict[str, bool]:
        """Compare the settings of each topic with those in Redis; nothing is written.

        Returns:
            By topic: whether it is there. One that is not is created when the worker starts.

        Raises:
            SettingsMismatch, ConfigurationError: a topic cannot be used as it was asked for.
            StorageError: Redis cannot be asked.
        """
        executor, found = self._connect(), {}
        try:
            for one in self.handlers:
                try:
                    executor.run(opening.ensure(one.handle, create=False))
                    one.opened(one.handle.settings.lease_ms)
                    found[one.handle.name] = True
                except TopicNotFound:
                    found[one.handle.name] = False
        finally:
            if self._owns_executor:
                executor.close()
        return found

    # --- life ------------------------------------------------------------------------------------

    def start(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Begin to take messages, in threads of its own; returns at once.

        Args:
            loop: where async handlers run; None: a loop in a thread of its own.

        Raises:
            SettingsMismatch, ConfigurationError: a topic cannot be used as it was asked for.
        """
        if self._crews:
            raise InvalidValue("worker: it is running; stop it before it is started again")
        self._stopping.clear()
        executor = self._connect()
        for one in self.handlers:
            try:
                executor.run(opening.ensure(one.handle))
                one.opened(one.handle.settings.lease_ms)
            except StorageError as error:
                log.error("%s: its topic cannot be opened yet: %s", one, error)
            except BaseException:
                if self._owns_executor:
                    executor.close()
                raise
        if loop is None and any(one.is_async for one in self.handlers):
            self._loop = Loop()
            loop = self._loop.loop
        board = self._board = Board(sum(map(most_held, self.handlers)))
        self._crews = [
            Crew(one, Desk(executor, one, board, number), self._hooks,
                 loop if one.is_async else None)
            for number, one in enumerate(self.handlers)
        ]  # fmt: skip
        board.expect(min(map(_lease_ms, self.handlers)))
        handles = [one.handle for one in self.handlers]
        self._keeper = keepers.start(self._where, board, executor, handles)
        for interceptor in self._hooks.chain:
            contained(interceptor.watch, self)
        self._auditor = auditors.start(self._hooks.chain, executor, handles)
        for crew in self._crews:
            crew.start()
        self._watch = Watch(
            self._crews, self._keeper, board, self._loop, executor, self._watchdog_s, self._stopping
        )
        self._watch.start()

    def _connect(self) -> Executor:
        """The client's executor, or a blocking one to the same Redis for an async client."""
        if isinstance(self._client, Client):
            self._executor, self._owns_executor = self._client._executor, False
        else:
            theirs = self._client._executor
            self._executor = Executor(theirs.address, theirs.retry_for, theirs.timeout_s)
            self._owns_executor = True
        return self._executor

    def stop(self, grace: Duration | None = None) -> bool:
        """Take no more, wait for what runs up to `grace`, hand back the rest.

        Returns:
            Whether everything that had begun came to its end.
        """
        if not self._crews:
            return True
        seconds = self._grace_s
        if grace is not None:
            seconds = milliseconds(grace, "grace", zero=True) / 1000
        self._stopping.set()
        for crew in self._crews:
            crew.stop_taking()
        if self._auditor is not None:
            self._auditor.ask_to_stop()
        # Hands that have nothing to do need a moment to end too.
        finished, until = True, time.monotonic() + max(seconds, WATCH_S)
        for crew in self._crews:
            crew.hand_back(FETCHER_S)
        for crew in self._crews:
            while not crew.join(min(WATCH_S, max(0.0, until - time.monotonic()))):
                if self._hurry or time.monotonic() >= until:
                    finished = False
                    break
        for crew in self._crews:
            crew.end(CANCEL_S)
        assert self._keeper is not None
        assert self._board is not None
        assert self._executor is not None
        if self._auditor is not None:
            self._auditor.stop()
            self._auditor = None
        assert self._watch is not None
        self._watch.end()
        self._keeper.stop()
        if self._loop is not None:
            self._loop.stop(CANCEL_S)
            self._loop = None
        if finished:
            self._board.close()  # else a thread may still look at it
        if self._owns_executor:
            self._executor.close()
        self._counts = self.counts()
        self._crews, self._keeper, self._board, self._watch = [], None, None, None
        return finished

    def ask_to_stop(self) -> None:
        """Ask `run` to end, with its grace time. Asked again, nothing changes."""
        self._heard.put(0)
        self._stopping.set()

    def run(self, started: Callable[[], object] | None = None) -> int:
        """Work until SIGTERM or SIGINT, and return the exit code: `raise SystemExit(worker.run())`.

        Args:
            started: called once, when the handlers are at work.

        Returns:
            0 all that had begun was finished; 4 the grace time ran out and the rest was handed
            back; 70 nothing moved any more; 128 + n a second signal n.
        """
        with self._signals():
            self.start()
            log.info("working on %s", ", ".join(one.handle.name for one in self.handlers))
            if started is not None:
                started()
            while not self._told and not self._stopping.is_set():
                with contextlib.suppress(Empty):
                    self._heard.get(timeout=0.5)
            if self._watch is not None and self._watch.stuck:
                return STUCK
            log.info("stopping: %g s for what runs; a second signal ends at once", self._grace_s)
            finished = self.stop()
        if self._hurry:
            return 128 + self._signal
        return FINISHED if finished else HANDED_BACK

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._told = self._hurry = False
        numbers = (signal.SIGTERM, signal.SIGINT)
        before = [signal.signal(number, self._signalled) for number in numbers]
        try:
            yield
        finally:
            for number, one in zip(numbers, before, strict=True):
                signal.signal(number, one)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        """The first signal asks to stop, the second to do so at once.

        No lock is taken here: the code that is interrupted may have it.
        """
        if self._told:
            self._signal = number
            self._hurry = True
            # It may be that nothing can be handed back: Redis is away, or a thread is deaf.
            end = threading.Timer(CANCEL_S, os._exit, (128 + number,))
            end.daemon = True
            end.start()
        self._told = True
        self._heard.put(number)

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Worker:
        """Start, with async handlers in this loop."""
        loop = asyncio.get_running_loop()
        await asyncio.to_thread(self.start, loop)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.stop)

    def health(self) -> Health:
        """How it is: for a liveness or readiness check."""
        watch = self._watch
        return Health(False, ["it is not running"], True) if watch is None else watch.health()

    def missing(self) -> dict[str, int]:
        """By topic: how many messages were missing when `rmq.Audit` last looked, here."""
        return {
            topic: count
            for one in self._hooks.chain
            if isinstance(one, Audit)
            for topic, count in one.missing.items()
        }

    def counts(self) -> dict[str, dict[str, int]]:
        """By topic: how many deliveries were taken, are in hand, and what became of the others.

        Of a worker that has stopped: when it did. Where the handler has guards, "duplicate" tells
        how many of those acked had been done before, and "claim_lost" whose claims were gone.
        """
        if not self._crews:
            return self._counts
        return {
            crew.handler.handle.name: {
                "taken": crew.taken, "held": crew.held, **crew.settler.tally, **crew.settler.guarded
            }
            for crew in self._crews
        }  # fmt: skip


def _lease_ms(handler: Handler) -> int:
    """The lease of a handler's deliveries; the shortest there is, where Redis cannot be asked."""
    if handler.lease_ms is not None:
        return handler.lease_ms
    return handler.handle.settings.lease_ms if handler.handle.is_open else LEASE_MIN_MS


def _chosen(client: Client | AsyncClient, topics: Iterable[str] | None) -> list[Handler]:
    known = client._handlers.by_topic
    if not known:
        raise ConfigurationError(
            "worker: no handler is registered on this client; decorate a function with "
            "@topic.handler(), and import its module before the worker starts"
        )
    if topics is None:
        return list(known.values())
    if isinstance(topics, str):
        raise InvalidType(f"topics: {topics!r}; give a list of names")
    names = list(topics)
    missing = [name for name in names if name not in known]
    if missing or not names:
        raise ConfigurationError(
            f"topics: no handler is registered for {', '.join(map(repr, missing)) or 'none'}; "
            f"there are handlers for {', '.join(sorted(known))}"
        )
    return [known[name] for name in dict.fromkeys(names)]
