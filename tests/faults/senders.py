"""A storm: tasks and threads that send, and settle, through one client each, all at once.

Their calls are shared, and are lost, killed, refused and held up meanwhile. Each caller notes what
it was told, and an account of what is in Redis afterwards says whether that was true:

    stored     it was delivered, once, under the id that the caller was given
    refused    it was not delivered
    unknown    either; a number of it that never came is accounted for by the audit

and the messages of a caller are in the order in which it sent them.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import redis

import rmq
from bench.soak.proxy import Proxy, between
from tests.faults.hostile import Pair
from tests.faults.storm import Played, Watch, insist
from tests.servers import Server

TASKS, THREADS, SETTLERS = 64, 32, 16
PAUSE_S = 0.05  # between two sends of a caller: 1900 a second, and calls are shared
TIMEOUT_S, RETRY_S = 5.0, 1.0
SLOTS = 3
LEASE_S = 2.0
FAULT_EACH_S = 0.25
BETWEEN = 50  # messages that are stored between two faults
MAX_LENGTH = 120  # so that some are refused
FAULTS = ("cut send", "cut ack", "reset", "flush", "down", "pause", "resize", "cancel", "hold")


class Books:
    """An account of what each caller was told, and of what came; threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.stored: dict[tuple[str, int], rmq.MessageId] = {}
        self.refused: Counter[str] = Counter()
        self.refused_bodies: set[tuple[str, int]] = set()
        self.unknown: set[tuple[str, int]] = set()
        self.came: dict[tuple[str, int], list[rmq.MessageId]] = {}
        self.settled: set[rmq.MessageId] = set()
        self.again: list[rmq.MessageId] = []  # delivered after an ack that was confirmed
        self.offsets: dict[tuple[str, int], list[int]] = {}  # by caller and slot, as it sent
        self.errors: list[BaseException] = []

    def told(self, caller: str, n: int, outcome: rmq.SendResult | BaseException) -> None:
        with self._lock:
            if isinstance(outcome, rmq.SendResult):
                self.stored[caller, n] = outcome.id
                self.offsets.setdefault((caller, outcome.slot), []).append(outcome.offset)
            elif isinstance(outcome, rmq.OutcomeUnknown | asyncio.CancelledError):
                self.unknown.add((caller, n))
            elif isinstance(outcome, rmq.QueueFull | rmq.TopicPaused | rmq.Unavailable):
                self.refused[type(outcome).__name__] += 1
                self.refused_bodies.add((caller, n))
            else:
                self.errors.append(outcome)

    def take(self, delivery: Any) -> None:
        caller, n = delivery.body
        with self._lock:
            self.came.setdefault((caller, n), []).append(delivery.id)
            if delivery.id in self.settled:
                self.again.append(delivery.id)

    def settle(self, delivery: Any) -> None:
        with self._lock:
            self.settled.add(delivery.id)

    def check(self) -> str:
        """Insist that each caller was told the truth; return the figures."""
        insist(not self.errors, self.errors[:3])
        for sent, id in self.stored.items():
            insist(set(self.came.get(sent, [])) == {id}, (sent, id, self.came.get(sent)))
        refused = self.refused_bodies & set(self.came)
        insist(not refused, ("refused, and came", sorted(refused)[:3]))
        ids = [ids[0] for ids in self.came.values()]
        insist(len(set(ids)) == len(ids), "one id for two messages")
        strange = set(self.came) - set(self.stored) - self.unknown
        insist(not strange, ("nobody sent it", sorted(strange)[:3]))
        disorder = [key for key, offsets in self.offsets.items() if offsets != sorted(offsets)]
        insist(not disorder, ("out of order, by caller and slot", disorder[:3]))
        insist(not self.again, ("settled, and came again", self.again[:3]))
        return (
            f"{len(self.stored)} stored, {dict(self.refused)} refused, {len(self.unknown)} unknown "
            f"of which {len(self.unknown & set(self.came))} came"
        )


class Senders:
    """All that calls; in threads of its own until `end`."""

    def __init__(self, url: str, name: str, books: Books, audited: bool) -> None:
        self.url, self.name, self.books = url, name, books
        self._ended = threading.Event()
        self._calm = threading.Event()  # consumers end when nothing is left, behind the faults
        self.cancels = 0  # sends that are to be cancelled
        self.options: dict[str, Any] = {"timeout": TIMEOUT_S, "retry_for": RETRY_S}
        self._audited = audited
        self.client = rmq.Client(url, interceptors=self._interceptors(), **self.options)
        topic = self.client.topic(name)
        jobs: list[Callable[[], None]] = [lambda: asyncio.run(self._tasks())]
        jobs += [lambda n=n: self._thread(topic, f"thread{n}") for n in range(THREADS)]  # type: ignore[misc]
        self._senders = [threading.Thread(target=self._guarded, args=[job]) for job in jobs]
        consumers: list[Callable[[], None]] = [self._consume, lambda: asyncio.run(self._aconsume())]
        self._consumers = [threading.Thread(target=self._guarded, args=[job]) for job in consumers]
        for thread in (*self._senders, *self._consumers):
            thread.daemon = True
            thread.start()

    def _interceptors(self) -> list[rmq.Interceptor]:
        return [rmq.Audit()] if self._audited else []

    def _guarded(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            self.books.errors.append(error)

    # --- sending -------------------------------------------------------------------------------

    def _thread(self, topic: Any, caller: str) -> None:
        n = 0
        while not self._ended.is_set():
            try:
                outcome = topic.send([caller, n], slot_basis=caller)
            except BaseException as error:
                outcome = error
            self.books.told(caller, n, outcome)
            n += 1
            time.sleep(PAUSE_S)

    async def _tasks(self) -> None:
        async with rmq.AsyncClient(
            self.url, interceptors=self._interceptors(), **self.options
        ) as client:
            topic = client.topic(self.name)
            await asyncio.gather(*[self._task(topic, f"task{n}") for n in range(TASKS)])

    async def _task(self, topic: Any, caller: str) -> None:
        n = 0
        while not self._ended.is_set():
            send = asyncio.ensure_future(topic.send([caller, n], slot_basis=caller))
            if self.cancels:
                self.cancels -= 1
                asyncio.get_running_loop().call_later(0.0005, send.cancel)
            (outcome,) = await asyncio.gather(send, return_exceptions=True)
            self.books.told(caller, n, outcome)
            n += 1
            await asyncio.sleep(PAUSE_S)

    # --- consuming -----------------------------------------------------------------------------

    def _consume(self) -> None:
        """Take batches, and settle each delivery in a thread of its own."""
        with rmq.Client(self.url, **self.options) as client:
            consumer = client.topic(self.name).consumer(lease=LEASE_S)
            while not self._calm.is_set():
                for delivery_group in _groups(self._received(consumer)):
                    threads = [
                        threading.Thread(target=self._settle, args=[one]) for one in delivery_group
                    ]
                    for thread in threads:
                        thread.start()
                    for thread in threads:
                        thread.join()
            with contextlib.suppress(rmq.StorageError):
                consumer.close()

    def _received(self, consumer: Any) -> list[Any]:
        try:
            got = consumer.receive(200, wait=0.1)
        except (rmq.StorageError, rmq.TopicVanished):
            return []
        for one in got:
            self.books.take(one)
        return list(got)

    def _settle(self, delivery: Any) -> None:
        with self._expected():
            delivery.ack()
            self.books.settle(delivery)

    @contextlib.contextmanager
    def _expected(self) -> Iterator[None]:
        """Ignore what faults do to an ack: the message comes again, or is settled."""
        try:
            yield
        except (rmq.StorageError, rmq.LeaseLost, rmq.AlreadySettled, rmq.TopicVanished):
            pass
        except BaseException as error:
            self.books.errors.append(error)

    async def _aconsume(self) -> None:
        async with rmq.AsyncClient(self.url, **self.options) as client:
            consumer = client.topic(self.name).consumer(lease=LEASE_S)
            while not self._calm.is_set():
                try:
                    got = await consumer.receive(200, wait=0.1)
                except (rmq.StorageError, rmq.TopicVanished):
                    continue
                for one in got:
                    self.books.take(one)
                for group in _groups(got):
                    await asyncio.gather(*map(self._asettle, group))
            with contextlib.suppress(rmq.StorageError):
                await consumer.close()

    async def _asettle(self, delivery: Any) -> None:
        with self._expected():
            await delivery.ack()
            self.books.settle(delivery)

    # --- the end -------------------------------------------------------------------------------

    def stop_sending(self) -> bool:
        """Let the senders end; whether they have."""
        self._ended.set()
        return not any(thread.is_alive() for thread in self._senders)

    def end(self) -> None:
        """End the consumers, too."""
        self._ended.set()
        self._calm.set()
        for thread in (*self._senders, *self._consumers):
            thread.join(TIMEOUT_S + 30)
            insist(not thread.is_alive(), f"{thread.name} has no answer")
        self.client.close()


def _groups(deliveries: list[Any]) -> list[list[Any]]:
    return [deliveries[at : at + SETTLERS] for at in range(0, len(deliveries), SETTLERS)]


class Faults:
    """The faults that the callers meet.

    Args:
        senders: the callers.
        proxy: between them and Redis.
        raw: makes a connection to Redis, past the proxy.
        down: Redis is killed and started again, or its replica takes over.
        admin: of a client that outlives all that.
        rng: decides what is left to chance.
    """

    def __init__(
        self,
        senders: Senders,
        proxy: Proxy,
        raw: Callable[[], redis.Redis],
        down: Callable[[random.Random], None],
        admin: rmq.Admin,
        rng: random.Random,
    ) -> None:
        self.fired: Counter[str] = Counter()
        self._senders, self._proxy, self._raw, self._down = senders, proxy, raw, down
        self._admin, self._rng = admin, rng
        self._slots = SLOTS

    def cause(self, fault: str) -> None:
        """Cause one of them."""
        name, admin, rng = self._senders.name, self._admin, self._rng
        verb, _, script = fault.partition(" ")
        if verb == "cut":
            self._proxy.cut(script, times=rng.choice([1, 2, 6]), inside=rng.random() < 0.5)
        elif verb == "hold":
            self._proxy.hold("send", rng.uniform(0.2, 2.5))
        elif verb == "reset":
            self._proxy.reset()
        elif verb == "flush":
            with self._raw() as raw:
                raw.script_flush()
        elif verb == "down":
            self._down(rng)
        elif verb == "pause":
            admin.topic_pause(name, verb="send", why="a storm")
            time.sleep(0.2)
            admin.topic_resume(name, verb="send")
        elif verb == "resize":
            self._slots = 2 * SLOTS if self._slots == SLOTS else SLOTS
            admin.topic_resize(name, self._slots)
        else:
            self._senders.cancels = 16
        self.fired[fault] += 1


def killed(server: Server, name: str, rng: random.Random) -> Played:
    """Play the storm with a Redis that is killed, and keeps what it has answered."""

    def down(rng: random.Random) -> None:
        server.kill()
        time.sleep(rng.choice([0.0, 2 * RETRY_S]))
        server.start()

    with between(server.port) as proxy:
        return _played(proxy, server.url, server.raw, down, name, rng)


def failed_over(servers: Pair, name: str, rng: random.Random) -> Played:
    """Play the storm with a master whose replica takes over."""
    return _played(
        servers.front, servers.url, lambda: servers.master.raw(),
        lambda rng: servers.failover(rng.uniform(0, 1.0)), name, rng,
    )  # fmt: skip


def _played(
    proxy: Proxy,
    url: str,
    raw: Callable[[], redis.Redis],
    down: Callable[[random.Random], None],
    name: str,
    rng: random.Random,
) -> Played:
    books = Books()
    with rmq.Client(url, retry_for=30) as beside:
        beside.topic(name, slots=SLOTS, max_length=MAX_LENGTH, retry="immediate").open()
        # The numbers of the audit belong to a slot, so an audited topic cannot be resized.
        audited = rng.random() < 0.5
        senders = Senders(proxy.url, name, books, audited)
        faults = Faults(senders, proxy, raw, down, beside.admin, rng)
        plan = [fault for fault in FAULTS if not audited or fault != "resize"]
        rng.shuffle(plan)
        watch = Watch(lambda: beside.admin.stats(name))

        def counters() -> tuple[object, ...]:
            return len(books.stored), len(books.came), len(books.settled), faults.fired.total()

        try:
            for fault in plan:
                time.sleep(rng.uniform(0, FAULT_EACH_S))
                enough = len(books.stored) + BETWEEN
                faults.cause(fault)
                watch.wait(lambda: len(books.stored) >= enough or books.errors, counters)  # noqa: B023
            watch.wait(senders.stop_sending, counters)
            proxy.pass_all()
            watch.wait(lambda: not beside.admin.stats(name)["records"], counters)
        finally:
            senders.end()
        told = books.check()
        if audited:
            found = beside.admin.audit(name, older_than=0)
            insist(found.missing == 0 and found.numbered >= len(books.stored), found)
    return Played(f"{told}; {len(books.settled)} settled; {dict(faults.fired)}", Counter())
