"""The users of a load test. Each has a client of its own and reports RMQ's latencies to locust."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from locust import User, task
from locust.env import Environment
from locust.exception import StopUser
from locust.user.task import LOCUST_STATE_STOPPING

import rmq
from bench.load.message_log import KINDS
from bench.load.run import Run

T = TypeVar("T")
WAIT_S = 0.5  # longest wait for a message before the consumer checks whether the run is over
MERGE_KEYS = 20
BEHIND_S = 1.0  # longest delay that a late producer catches up, to avoid a burst
LATE = tuple(
    f"late {kind} ({'due' if kind in ('delayed', 'merging') else 'sent'} -> received)"
    for kind in KINDS
)
Held = list[tuple[rmq.Delivery, int]]  # deliveries with their serial numbers


class RMQUser(User):
    """Base class of users: connects, measures, keeps the rate, and cleans up."""

    abstract = True

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.run_of = Run.of(environment)
        self.options = self.run_of.options
        self.message_log = self.run_of.message_log
        self.consumer: rmq.Consumer | None = None
        self.client: rmq.Client | None = None
        self.held: set[int] = set()
        self.next_at = 0.0
        self.ending = threading.Event()  # gevent's class, because locust has patched threading

    def on_start(self) -> None:
        """Connect; a consumer's lease outlasts its work."""
        self.client = self.run_of.connect()
        self.topic = self.run_of.topic(self.client)
        self.consumer = self.topic.consumer(lease=self.options.lease_s)
        pause = self.options.batch / self.options.rate if self.options.rate else 0.0
        self.next_at = time.monotonic() + random.random() * pause  # producers take turns

    def on_stop(self) -> None:
        """Release unsettled deliveries, and close."""
        try:
            if self.consumer is not None:
                self.message_log.giving_back(self.held)
                self.consumer.close()
        except rmq.RMQError as error:
            self.report("close", 0.0, 0, error)
        finally:
            if self.client is not None:
                self.run_of.disconnect(self.client)

    def stop(self, force: bool = False) -> bool:
        """End after the current task.

        Locust kills a pausing user. The kill may arrive after the pause, during a send, whose
        outcome would be unknown.
        """
        if force or self._state is None:
            return bool(super().stop(force))
        self._state = LOCUST_STATE_STOPPING
        self.ending.set()
        return False

    def report(self, name: str, seconds: float, size: int, error: Exception | None = None) -> None:
        """Report a request to locust."""
        self.environment.events.request.fire(
            request_type="rmq",
            name=name,
            response_time=max(0.0, seconds) * 1000,
            response_length=size,
            exception=error,
            context=self.context(),
        )

    def measured(self, name: str, size: int, call: Callable[[], T]) -> T | None:
        """Call RMQ and report the request; return None if it failed."""
        started = time.perf_counter()
        try:
            result = call()
        except rmq.RMQError as error:
            self.report(name, time.perf_counter() - started, 0, error)
            return None
        self.report(name, time.perf_counter() - started, size)
        return result

    def pause(self) -> None:
        """Wait until `--rate` allows the next send."""
        if self.ending.wait(max(0.0, self.next_at - time.monotonic())):
            raise StopUser

    def paced(self, messages: int) -> None:
        """Schedule the next send according to the number of messages that were sent."""
        if self.options.rate:
            behind = time.monotonic() - BEHIND_S
            self.next_at = max(self.next_at, behind) + messages / self.options.rate

    # Producing

    def outgoing(self) -> rmq.Outgoing:
        """Return a message of random kind, size and time, within the options."""
        options = self.options
        kind = random.choices(range(len(KINDS)), options.kinds)[0]
        out = rmq.Outgoing(self.message_log.body(kind, random.randint(*options.body_bytes)))
        match KINDS[kind]:
            case "priority":
                out.priority = random.randint(17, 1000)
            case "delayed":
                out.delay = random.randint(*options.delay_ms) / 1000
            case "merging":
                out.merge_key = f"key-{random.randrange(MERGE_KEYS)}"
                out.time_range = options.merge_ms / 1000
        return out

    def send_one(self) -> None:
        """Wait for the next turn, then send a message."""
        self.pause()
        out = self.outgoing()
        result = self.measured(
            "send",
            len(out.body),
            lambda: self.topic.send(
                out.body,
                priority=out.priority,
                delay=out.delay,
                merge_key=out.merge_key,
                time_range=out.time_range,
            ),
        )
        if result is not None:
            self.message_log.sent(out.body, result)
        self.paced(1)

    def send_batch(self) -> None:
        """Wait for the next turn, then send `--batch` messages in one call."""
        self.pause()
        batch = [self.outgoing() for _ in range(self.options.batch)]
        size = sum(len(out.body) for out in batch)
        results = self.measured("send_many", size, lambda: self.topic.send_many(batch))
        for out, result in zip(batch, results or (), strict=False):
            self.message_log.sent(out.body, result)
        self.paced(len(batch))

    # Consuming

    def receive(self, wait: float) -> Held:
        """Receive a batch.

        An empty reply is not reported, and a receive with a wait has its own name, because neither
        measures the speed of RMQ.
        """
        assert self.consumer is not None
        started = time.perf_counter()
        name = "receive (after a wait)" if wait else "receive"
        try:
            batch = self.consumer.receive(self.options.batch, wait=wait)
        except rmq.RMQError as error:
            self.report(name, time.perf_counter() - started, 0, error)
            return []
        took, now, server_now = (
            time.perf_counter() - started,
            time.time(),
            self.run_of.server_time(),
        )
        held: Held = []
        for delivery in batch:
            seen = self.message_log.receive(delivery, server_now)
            if seen is None:
                self.run_of.put_back(delivery)
                continue
            held.append((delivery, seen.serial))
            self.held.add(seen.serial)
            if delivery.attempt == 1:
                due = delivery.due
                late = now - seen.sent_at if due is None else server_now - due.timestamp()
                self.report(LATE[seen.kind], late, len(delivery.body))
        if held:
            self.report(name, took, _size([delivery for delivery, _ in held]))
        return held

    def work(self, held: Held) -> None:
        """Work on each delivery, then ack the successes and nack the failures."""
        done: Held = []
        failed: Held = []
        for item in held:
            if self.options.work_ms:
                time.sleep(self.options.work_ms / 1000)
            (failed if random.random() < self.options.fail else done).append(item)
        if done:
            self.ack(done)
        if failed:
            self.nack(failed)

    def ack(self, held: Held) -> None:
        """Ack deliveries; report an expired lease as a failure."""
        consumer, deliveries = self.consumer, [delivery for delivery, _ in held]
        assert consumer is not None
        self.message_log.acking(serial for _, serial in held)
        lost = self.measured("ack", _size(deliveries), lambda: consumer.ack(deliveries))
        if lost is None:
            return  # the state stays ACKING, so a second delivery would be recorded
        lost_ids = {id(delivery) for delivery in lost}
        for delivery, serial in held:
            self.message_log.acked(serial, id(delivery) in lost_ids)
            self.held.discard(serial)
        self._late(lost, "ack")

    def nack(self, held: Held) -> None:
        """Nack deliveries."""
        consumer, deliveries = self.consumer, [delivery for delivery, _ in held]
        assert consumer is not None
        error = "failed on purpose (--fail)"
        self.message_log.giving_back(serial for _, serial in held)
        lost = self.measured(
            "nack", _size(deliveries), lambda: consumer.nack(deliveries, error=error)
        )
        if lost is None:
            return
        self.held.difference_update(serial for _, serial in held)
        self.message_log.nacked += len(held) - len(lost)
        self._late(lost, "nack")

    def _late(self, lost: Sequence[rmq.Delivery], verb: str) -> None:
        for delivery in lost:
            error = rmq.LeaseLost(f"the lease expired before the {verb}")
            self.report(f"{verb} (lease lost)", 0.0, len(delivery.body), error)


def _size(deliveries: Sequence[rmq.Delivery]) -> int:
    return sum(len(delivery.body) for delivery in deliveries)


class Producer(RMQUser):
    """Sends at `--rate`: single messages and batches."""

    weight = 2

    @task
    def single(self) -> None:
        """Send one message."""
        self.send_one()

    @task
    def batch(self) -> None:
        """Send a batch; with a `--batch` of 1, a single message."""
        if self.options.batch > 1:
            self.send_batch()
        else:
            self.send_one()


class Consumer(RMQUser):
    """Receives, works for `--work-ms` on each delivery, acks; nacks `--fail` of them."""

    weight = 2

    @task
    def consume(self) -> None:
        """Receive and work; if the topic is empty, wait for a message first."""
        self.work(self.receive(0) or self.receive(WAIT_S))


class Mixed(RMQUser):
    """Sends at `--rate` like a producer, and consumes between the sends."""

    weight = 1

    @task
    def turn(self) -> None:
        """Send one message or a batch, then receive and work."""
        if self.options.batch > 1 and random.random() < 0.5:
            self.send_batch()
        else:
            self.send_one()
        self.work(self.receive(0))
