"""Lives of messages by kind: a round calls each verb several times, for k messages per call."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Sequence
from typing import Any

import redis

import rmq
from bench.baseline import Baseline
from bench.core import BACKLOG, BODY
from bench.cost.spending import Meter
from bench.machine import REPLY_S
from bench.queues import JSON_BODY
from rmq import Outgoing
from rmq.kernel.producer import report

HOUR_S = 3600.0
SINGLE = "single life"


class Life:
    """Plain messages: send, take, ack. Subclasses change the messages or the verbs.

    Args:
        url: URL of the server.
        name: Name of its topic, or of its keys.
        k: Messages per call.
        calls: Calls of each verb in a round.
    """

    kind = "plain"
    verbs: tuple[str, ...] = ("send", "take", "ack", "life", SINGLE)
    codec = "bytes"
    ordered = False
    slots = 1
    backlog_delay: float | None = None  # with a delay the backlog is never taken
    backlog = BACKLOG

    def __init__(self, url: str, name: str, k: int, calls: int) -> None:
        self.k, self.calls, self.count = k, calls, k * calls
        self.client = rmq.Client(url, interceptors=self.interceptors())
        # While a batch of an ordered slot is in flight, its slot gives nothing, so each call has
        # its own topic.
        names = [f"{name}-{n}" for n in range(calls if self.ordered else 1)]
        self.topics = [
            self.client.topic(name, codec=self.codec, slots=self.slots, **self.topic_settings())
            for name in names
        ]
        self.consumers = [topic.consumer(ordered=self.ordered) for topic in self.topics]
        for topic in self.topics:
            topic.open()
            waiting = max(200, self.backlog // len(names))  # more than fit into a listpack
            for left in range(waiting, 0, -10_000):
                topic.send_many([self.waiting_message() for _ in range(min(left, 10_000))])

    def interceptors(self) -> Sequence[rmq.Interceptor]:
        """Return the client's interceptors."""
        return ()

    def topic_settings(self) -> dict[str, Any]:
        """Return additional settings of the topic."""
        return {}

    def waiting_message(self) -> Outgoing:
        """Return a message of the backlog."""
        return Outgoing(self.body(), delay=self.backlog_delay)

    def body(self) -> Any:
        """Return a body."""
        return BODY

    def send(self, call: int) -> None:
        """Send k messages in one call, as a user would."""
        topic = self.topics[call % len(self.topics)]
        if self.k == 1:
            topic.send(self.body())
        else:
            topic.send_many([Outgoing(self.body()) for _ in range(self.k)])

    def take(self, call: int) -> Any:
        """Take k messages in one call."""
        taken = self.consumers[call % len(self.consumers)].receive(self.k)
        if len(taken) != self.k:
            raise RuntimeError(f"{self.kind}: took {len(taken)} of {self.k} messages")
        return taken

    def ack(self, call: int, taken: Any) -> None:
        """Settle them in one call."""
        if self.consumers[call % len(self.consumers)].ack(taken):
            raise RuntimeError(f"{self.kind}: a lease was lost; is the machine that slow?")

    def between(self, meter: Meter) -> None:
        """Do the work between send and take."""

    def settle_all(self) -> None:
        """Take and settle the messages of a round in few calls."""
        for consumer in self.consumers:
            left = self.count // len(self.consumers)
            while left:
                taken = consumer.receive(min(1000, left))
                consumer.ack(taken)
                left -= len(taken)

    def run_send(self, meter: Meter) -> None:
        """Measure one round of sends alone."""
        with meter.measure("send", self.count):
            for call in range(self.calls):
                self.send(call)
        self.between(meter)
        self.settle_all()

    def run(self, meter: Meter) -> None:
        """Measure one round: all calls of a verb, then the next verb."""
        with meter.measure("send", self.count):
            for call in range(self.calls):
                self.send(call)
        self.between(meter)
        with meter.measure("take", self.count):
            batches = [self.take(call) for call in range(self.calls)]
        with meter.measure("ack", self.count):
            for call, taken in enumerate(batches):
                self.ack(call, taken)

    def run_single(self, meter: Meter) -> None:
        """Measure one round of messages that are sent, taken and acked one by one."""
        with meter.measure(SINGLE, self.calls):
            for call in range(self.calls):
                self.send(call)
                self.ack(call, self.take(call))

    def rest(self) -> None:
        """End background work between rounds."""

    def close(self) -> None:
        """Close the connections."""
        for consumer in self.consumers:
            consumer.close()
        self.client.close()


class Json(Life):
    """The default codec."""

    kind = "json"
    codec = "json"

    def body(self) -> Any:
        """Return an object of about 100 bytes as JSON."""
        return JSON_BODY


class Timed(Life):
    """Messages that are due some ms after their send; the backlog is due in an hour."""

    kind = "timed"
    verbs = ("send", "take", "ack", "life")
    backlog_delay = HOUR_S
    AHEAD_MS, EACH_MS = 20, 100  # time to the first due time; messages due in the same ms

    def __init__(self, url: str, name: str, k: int, calls: int) -> None:
        super().__init__(url, name, k, calls)
        self.due_ms = 0

    def send(self, call: int) -> None:
        """Send k messages with increasing due times."""
        if call == 0:
            self.due_ms = int(time.time() * 1000) + self.AHEAD_MS
        topic, first = self.topics[0], self.due_ms + call * self.k // self.EACH_MS
        if self.k == 1:
            topic.send(BODY, at=first)
        else:
            topic.send_many([Outgoing(BODY, at=first + n // self.EACH_MS) for n in range(self.k)])

    def between(self, meter: Meter) -> None:
        """Sleep until all are due."""
        last_ms = self.due_ms + self.count // self.EACH_MS + 2
        time.sleep(max(0.0, last_ms / 1000 - time.time()))


class Merged(Life):
    """Messages with merge keys: the first of each key is stored, the second merges into it."""

    kind = "merged"
    verbs = ("send", "merge", "take", "ack", "life")
    backlog_delay = HOUR_S

    def __init__(self, url: str, name: str, k: int, calls: int) -> None:
        super().__init__(url, name, k, calls)
        self.range_s = 1.0  # the first round measures the necessary time
        self.sent: list[Sequence[rmq.SendResult]] = []

    def send(self, call: int) -> None:
        """Send k messages, each with its own merge key."""
        self.sent.append(self.send_keys(call))

    def statuses(self) -> set[str]:
        """Return the statuses of all messages sent since the last call."""
        sent, self.sent = self.sent, []
        return {result.status for results in sent for result in results}

    def send_keys(self, call: int) -> Sequence[rmq.SendResult]:
        """Send the messages of a call."""
        topic, keys = self.topics[0], [f"key:{call * self.k + n}" for n in range(self.k)]
        if self.k == 1:
            return [topic.send(BODY, merge_key=keys[0], time_range=self.range_s, merge="last")]
        return topic.send_many(
            [Outgoing(BODY, merge_key=key, time_range=self.range_s, merge="last") for key in keys]
        )

    def between(self, meter: Meter) -> None:
        """Send the same keys again, and sleep until all are due."""
        if self.statuses() != {"stored"}:
            raise RuntimeError("merged: a message of an earlier round was still there")
        began = time.monotonic()
        with meter.measure("merge", self.count):
            for call in range(self.calls):
                self.send(call)
        took = time.monotonic() - began
        if self.statuses() != {"merged"}:
            raise RuntimeError(f"merged: sending took more than {self.range_s} s; run it again")
        time.sleep(self.range_s + 0.005)
        self.range_s = max(0.15, 6 * took)


class Audited(Life):
    """Messages that are numbered for the audit."""

    kind = "audited"

    def interceptors(self) -> Sequence[rmq.Interceptor]:
        """Return the audit."""
        return (rmq.Audit(),)

    def rest(self) -> None:
        """Report the numbers now, so that no report runs while another life is measured."""
        producer_sequence = self.client._hooks.producer_sequence
        assert producer_sequence is not None
        self.client._transport.run(report.report(producer_sequence))


class Ordered(Life):
    """Messages taken in order."""

    kind = "ordered"
    ordered = True


class Grouped(Life):
    """Messages of ordered groups; a batch has one message of each of k groups."""

    kind = "groups"
    groups, each = 1000, 20
    setting = rmq.Groups()

    def __init__(self, url: str, name: str, k: int, calls: int) -> None:
        self.turn = itertools.count()
        # The step is prime to the number of groups, so that consecutive groups are far apart.
        self.step = 7919 if self.groups > 1 else 1
        self.backlog = self.groups * self.each
        super().__init__(url, name, k, calls)

    def topic_settings(self) -> dict[str, Any]:
        """Return the settings of the topic."""
        return {"groups": self.setting}

    def waiting_message(self) -> Outgoing:
        """Return a message of the next group."""
        number = next(self.turn) * self.step % self.groups
        return Outgoing(self.body(), group=f"customer-{number:07}")

    def send(self, call: int) -> None:
        """Send k messages in one call."""
        if self.k == 1:
            out = self.waiting_message()
            self.topics[0].send(out.body, group=out.group)
        else:
            self.topics[0].send_many([self.waiting_message() for _ in range(self.k)])

    def settle_all(self) -> None:
        """Take and settle the messages of a round, one at a time in each group."""
        left = self.count
        while left:
            taken = self.consumers[0].receive(min(250, left))
            self.consumers[0].ack(taken)
            left -= len(taken)


class OneGroup(Grouped):
    """Messages of one group, all of which may be in flight."""

    kind = "one group"
    groups, each = 1, BACKLOG
    setting = rmq.Groups(order=False, concurrency=1000)


class ManyGroups(Grouped):
    """Messages of 100 000 groups."""

    kind = "many groups"
    groups, each = 100_000, 2


class Nack(Life):
    """Deliveries that are given back as failed, for an immediate retry."""

    verbs = ("nack",)
    backlog_delay = HOUR_S

    def run(self, meter: Meter) -> None:
        """Measure one round; the messages are settled afterwards."""
        for call in range(self.calls):
            self.send(call)
        batches = [self.take(call) for call in range(self.calls)]
        with meter.measure(self.verbs[0], self.count):
            for taken in batches:
                self.give_back(taken)
        self.settle_all()

    def give_back(self, taken: Any) -> None:
        """Nack them in one call."""
        self.consumers[0].nack(taken, delay=0)


class Release(Nack):
    """Deliveries that are released to the front of the queue, unhandled."""

    verbs = ("release",)

    def give_back(self, taken: Any) -> None:
        """Release them in one call."""
        self.consumers[0].release(taken)


class Publish(Life):
    """Messages that are stored in a stage of k messages and published."""

    verbs = ("stage", "publish")
    backlog_delay = HOUR_S

    def run(self, meter: Meter) -> None:
        """Measure one round; the messages are settled afterwards."""
        topic = self.topics[0]
        stages = [topic.stage() for _ in range(self.calls)]
        with meter.measure("stage", self.count):
            for stage in stages:
                stage.push_bodies([BODY] * self.k)
        with meter.measure("publish", self.count):
            for stage in stages:
                topic.publish([stage.staged])
        self.settle_all()


class Query(Life):
    """Messages that a query takes and settles, with its renewals and other calls."""

    verbs = ("query_take", "query_settle")
    backlog_delay = HOUR_S

    def __init__(self, url: str, name: str, k: int, calls: int) -> None:
        super().__init__(url, name, k, calls)
        self.query = self.topics[0].query(uuid.uuid4().hex, "bench")
        self.after = {0: 0}

    def run(self, meter: Meter) -> None:
        """Measure one round."""
        for call in range(self.calls):
            self.send(call)
        ends = [self.after]
        with meter.measure("query_take", self.count):
            for _ in range(self.calls):
                ends.append(self.query.take(ends[-1], self.k))
        with meter.measure("query_settle", self.count):
            for end in ends[1:]:
                if self.query.settle(end).settled != self.k:
                    raise RuntimeError(f"query: a batch had not {self.k} messages")
        self.after = ends[-1]

    def close(self) -> None:
        """Close the connections."""
        self.query.close()
        super().close()


class Bare(Life):
    """The bench's baseline: three bare scripts."""

    kind = "bare"

    def __init__(self, url: str, name: str, k: int, calls: int) -> None:
        self.k, self.calls, self.count = k, calls, k * calls
        self.queue = Baseline(url, name)
        self.queue.send([BODY] * self.backlog)

    def send(self, call: int) -> None:
        """Send k messages."""
        self.queue.send([BODY] * self.k)

    def take(self, call: int) -> Any:
        """Take k messages."""
        return self.queue.receive(self.k)

    def ack(self, call: int, taken: Any) -> None:
        """Settle them."""
        self.queue.ack(taken)

    def settle_all(self) -> None:
        """Take and settle the messages of a round."""
        for call in range(self.calls):
            self.ack(call, self.take(call))

    def close(self) -> None:
        """Close the connection."""
        self.queue.close()


class Stream(Bare):
    """A raw stream: pipelines of k XADD, XREADGROUP, one XACK of k. Entries stay in the stream."""

    kind = "stream"
    GROUP = "workers"

    def __init__(self, url: str, name: str, k: int, calls: int) -> None:
        self.k, self.calls, self.count = k, calls, k * calls
        self.redis = redis.Redis.from_url(url, socket_timeout=REPLY_S)
        self.key = name
        self.redis.xgroup_create(self.key, self.GROUP, mkstream=True)

    def send(self, call: int) -> None:
        """Add k messages."""
        if self.k == 1:
            self.redis.xadd(self.key, {"body": BODY})
            return
        pipe = self.redis.pipeline(transaction=False)
        for _ in range(self.k):
            pipe.xadd(self.key, {"body": BODY})
        pipe.execute()

    def take(self, call: int) -> Any:
        """Take k messages."""
        entries: Any = self.redis.xreadgroup(self.GROUP, "bench", {self.key: ">"}, count=self.k)
        return entries[0][1]

    def ack(self, call: int, taken: Any) -> None:
        """Settle them."""
        self.redis.xack(self.key, self.GROUP, *[id for id, _ in taken])

    def run(self, meter: Meter) -> None:
        """Measure one round, and drop its entries."""
        super().run(meter)
        self.redis.xtrim(self.key, maxlen=BACKLOG)

    def close(self) -> None:
        """Close the connection."""
        self.redis.close()


LIVES: tuple[type[Life], ...] = (
    Life, Nack, Release, Publish, Query, Json, Timed, Merged, Audited, Ordered, Grouped,
    OneGroup, ManyGroups, Bare, Stream,
)  # fmt: skip
KINDS = tuple(dict.fromkeys(life.kind for life in LIVES))
VERBS = tuple(dict.fromkeys(verb for life in LIVES for verb in life.verbs))
