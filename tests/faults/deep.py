"""A topic in which many messages wait, and a producer that goes on whatever Redis answers.

A run in CI is small; `RMQ_TEST_LONG=1` has a million messages wait.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections import Counter
from collections.abc import Sequence

import rmq
from tests.faults.checker import History
from tests.patience import wait_for

LONG = bool(os.environ.get("RMQ_TEST_LONG"))
WAITING = 1_000_000 if LONG else 20_000
CALL = 1000  # messages of a call that fills or drains
BATCH = 100  # of the producer
BODY = 100


def number_of(delivery: rmq.Delivery) -> int:
    return int.from_bytes(delivery.body[:8], "big")


class Deep:
    """The topic, one client for all but the producer, and the history of its messages."""

    def __init__(self, url: str, name: str) -> None:
        self.history = History()
        self.client = rmq.Client(url, retry_for=0.5, timeout=10)
        self.topic = self.client.topic(name, codec="bytes", retry="immediate")
        self.topic.open()
        self.consumer = self.topic.consumer(lease=600)
        self.sent = 0
        self.refused: Counter[str] = Counter()  # calls of the producer, by error
        self.stored = 0  # messages of the producer
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Deep:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_producer()
        self.client.close()

    def messages(self, count: int) -> tuple[list[int], list[rmq.Outgoing]]:
        """Make so many, with their numbers as bodies."""
        numbers = list(range(self.sent, self.sent + count))
        self.sent += count
        for number in numbers:
            self.history.attempt(number)
        bodies = [number.to_bytes(8, "big").ljust(BODY, b"x") for number in numbers]
        return numbers, [rmq.Outgoing(body) for body in bodies]

    def answered(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.history.answer(number)

    def fill(self, count: int = WAITING) -> None:
        for _ in range(0, count, CALL):
            numbers, messages = self.messages(CALL)
            self.topic.send_many(messages)
            self.answered(numbers)

    # --- the producer ----------------------------------------------------------------------------

    def start_producer(self, url: str) -> None:
        self._thread = threading.Thread(target=self._produce, args=(url,), daemon=True)
        self._thread.start()

    def _produce(self, url: str) -> None:
        with rmq.Client(url, retry_for=0.2, timeout=5) as client:
            topic = client.topic(self.topic.name, codec="bytes")
            while not self._over.is_set():
                numbers, made = self.messages(BATCH)
                # A send that is repeated stores none twice.
                messages = [dataclasses.replace(one, id=topic.new_id()) for one in made]
                while not self._over.is_set():
                    try:
                        topic.send_many(messages)
                    except (rmq.SendError, rmq.StorageError) as error:
                        self.refused[type(error).__name__] += 1
                        time.sleep(0.02)
                    else:
                        self.answered(numbers)
                        self.stored += len(numbers)
                        break

    def wait_for_refusals(self, count: int = 3) -> None:
        wait_for(lambda: self.refused.total() >= count, "the producer is refused")

    def wait_for_progress(self) -> None:
        """Wait until the producer stores more than it had."""
        before = self.stored
        wait_for(lambda: self.stored >= before + 2 * BATCH, "the producer goes on")

    def stop_producer(self) -> None:
        if self._thread is not None:
            self._over.set()
            self._thread.join(60)
            assert not self._thread.is_alive()
            self._thread = None

    # --- the consumer ----------------------------------------------------------------------------

    def take(self, count: int, consumer: rmq.Consumer | None = None) -> list[rmq.Delivery]:
        taken = (consumer or self.consumer).receive(count)
        for delivery in taken:
            self.history.deliver(number_of(delivery))
        return taken

    def ack(self, taken: Sequence[rmq.Delivery]) -> None:
        assert self.consumer.ack(taken) == []
        for delivery in taken:
            self.history.settle(number_of(delivery))

    def drain(self, most: int | None = None) -> float:
        """Drain so many messages, or all; messages a second."""
        began, count = time.monotonic(), 0
        while most is None or count < most:
            taken = self.take(CALL)
            if not taken:
                break
            self.ack(taken)
            count += len(taken)
        return count / (time.monotonic() - began)

    def again(self, delivery: rmq.Delivery) -> rmq.Delivery:
        """Note that it will be delivered once more."""
        self.history.explain(number_of(delivery))
        return delivery
