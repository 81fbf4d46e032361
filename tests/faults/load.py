"""Producers and consumers in threads, writing a history: the load under which faults happen."""

from __future__ import annotations

import threading
import time
from typing import Any

import rmq
from tests.faults.checker import History
from tests.property.driver import Driver

RETRY_FOR_S = 15.0


class Load:
    """A producer and a consumer of one topic, each a thread with a client of its own."""

    def __init__(
        self, url: str, topic: str, *, is_async: bool = False, timeout: float = 10.0,
        slots: int = 1, pad: int = 0,
    ) -> None:  # fmt: skip
        self.history = History()
        self.errors: list[BaseException] = []
        self.name = topic
        self._pad = "x" * pad  # of each body
        self.drivers = [
            Driver(url, is_async, timeout=timeout, retry_for=RETRY_FOR_S) for _ in ("send", "take")
        ]
        self.topics = [
            one.client.topic(topic, retry="immediate", slots=slots) for one in self.drivers
        ]
        self.drivers[0].do(self.topics[0].open())
        self.last_progress = time.monotonic()
        self.longest_gap = 0.0
        self._running = [threading.Event(), threading.Event()]
        self._threads = [
            threading.Thread(target=self._guard, args=(one,), daemon=True)
            for one in (self._produce, self._consume)
        ]

    def _guard(self, work: Any) -> None:
        try:
            work()
        except BaseException as error:
            self.errors.append(error)

    def __enter__(self) -> Load:
        for event, thread in zip(self._running, self._threads, strict=True):
            event.set()
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for driver, event, thread in zip(self.drivers, self._running, self._threads, strict=True):
            event.clear()
            thread.join(30)
            driver.close()

    def _produce(self) -> None:
        do, topic = self.drivers[0].do, self.topics[0]
        number = 0
        while self._running[0].is_set():
            self.history.attempt(number)
            try:
                do(topic.send({"n": number, "pad": self._pad}))
            except rmq.OutcomeUnknown:
                pass
            else:
                self.history.answer(number)
            number += 1

    def _consume(self) -> None:
        consumer = self.topics[1].consumer(lease=10)
        while self._running[1].is_set():
            self._take(consumer)
        self.drivers[1].do(consumer.close())

    def _take(self, consumer: Any) -> int:
        do = self.drivers[1].do
        got = do(consumer.receive(20, wait=0.2))
        for one in got:
            assert one.body["pad"] == self._pad
            self.history.deliver(one.body["n"])
        lost = {one.id for one in do(consumer.ack(got))} if got else set()
        for one in got:
            if one.id not in lost:
                self.history.settle(one.body["n"])
        if got:
            now = time.monotonic()
            self.longest_gap = max(self.longest_gap, now - self.last_progress)
            self.last_progress = now
        return len(got)

    def wait_for_progress(self, since: float, until: float) -> None:
        """Wait until something was received after a moment; moments are of the monotonic clock."""
        while self.last_progress < since and time.monotonic() < until and not self.errors:
            time.sleep(0.01)

    def goes_on(self, within_s: float = RETRY_FOR_S + 15) -> None:
        """Wait until something is received that was asked for after this moment."""
        since = time.monotonic()
        self.wait_for_progress(since, since + within_s)
        assert self.last_progress >= since, f"nothing for {within_s:g} s, {self.errors}"

    def drain(self) -> None:
        """Stop sending, and take what is left."""
        for event, thread in zip(self._running, self._threads, strict=True):
            event.clear()
            thread.join(30)
        assert not self.errors, self.errors
        driver = self.drivers[1]
        consumer = self.topics[1].consumer(lease=10)
        while self._take(consumer):
            pass
        driver.do(consumer.close())
        stats = driver.do(driver.client.admin.stats(self.name))
        held = {name: stats[name] for name in ("priority", "retries", "later", "in_flight", "dead")}
        assert not any(held.values()), f"the drain is not complete: {held}"
