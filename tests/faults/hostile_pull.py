"""A consumer without a worker in a hostile run: it pulls, and does what the errors tell it to do.

It lives through the whole run. So each message comes to it once, in either mode: what was taken by
a call whose outcome is unknown is handed over by the next call, and an ack that is repeated
succeeds. The lease is longer than any fault.
"""

from __future__ import annotations

import random
import threading
import time
from typing import Literal

import rmq
from tests.faults.checker import History, Verdict

LEASE_S = 30.0
DRAIN_S = LEASE_S + 15

REPEATED = (rmq.Unavailable, rmq.OutcomeUnknown, rmq.QueueFull)  # a send, until it is answered

Mode = Literal["at_least_once", "at_most_once"]


class Pull:
    """A topic with a producer and a consumer, each a thread."""

    def __init__(self, url: str, mode: Mode) -> None:
        self.mode: Mode = mode
        self.history = History()
        self.unknown = 0  # answers that the consumer did not get
        self.leases_lost = 0
        self._name = f"hostile-pull-{mode.replace('_', '-')}"
        self._url = url
        self._sent_all = threading.Event()

    def produce(self, over: threading.Event, _rng: random.Random) -> None:
        """Send until it is over; a send is repeated with its id until it is answered."""
        with rmq.Client(self._url, timeout=1.0, retry_for=10.0) as client:
            topic, number = client.topic(self._name), 0
            while not over.wait(0.02):
                id: rmq.MessageId | None = None
                self.history.attempt(number)
                while number not in self.history.answered:
                    try:
                        id = id or topic.new_id()
                        topic.send({"n": number}, id=id)
                        self.history.answer(number)
                    except REPEATED:
                        time.sleep(0.05)
                number += 1
        self._sent_all.set()

    def consume(self, _rng: random.Random) -> None:
        """Pull until all that was sent has come, or nothing has come for too long.

        The client gives up sooner than most faults end.
        """
        with rmq.Client(self._url, timeout=0.5, retry_for=0.3) as client:
            consumer = client.topic(self._name).consumer(mode=self.mode, lease=LEASE_S)
            quiet_since = time.monotonic()
            while not self._is_complete():
                deliveries = self._receive(consumer)
                if deliveries:
                    quiet_since = time.monotonic()
                elif self._sent_all.is_set() and time.monotonic() > quiet_since + DRAIN_S:
                    return  # the verdict names what is missing
                for delivery in deliveries:
                    self.history.deliver(delivery.body["n"])
                    self._ack(delivery)

    def _is_complete(self) -> bool:
        return self._sent_all.is_set() and self.history.settled >= self.history.answered

    def _receive(self, consumer: rmq.Consumer) -> list[rmq.Delivery]:
        try:
            return consumer.receive(10, wait=0.2)
        except rmq.OutcomeUnknown:
            self.unknown += 1
        except (rmq.Unavailable, rmq.QueueFull):  # full: a resize has slots that are not made yet
            time.sleep(0.05)
        return []

    def _ack(self, delivery: rmq.Delivery) -> None:
        while True:
            try:
                delivery.ack()
                self.history.settle(delivery.body["n"])
                return
            except rmq.LeaseLost:
                self.leases_lost += 1
                return
            except rmq.OutcomeUnknown:
                self.unknown += 1
            except (rmq.Unavailable, rmq.QueueFull):
                time.sleep(0.05)

    def verdict(self, fired: int) -> Verdict:
        """The account, once both threads have ended. `fired`: how many faults there were."""
        return self.history.verdict(fired=fired)
