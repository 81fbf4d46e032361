"""Three in the morning: a large installation with five problems, for a reader who has to find them.

`python -m tests.server.three_in_the_morning` starts a Redis, fills it (300 topics, 2 000 000
messages, 30 kinds of errors, 5 000 groups), plants five problems that a seed chooses, and starts
`rmq server`. It prints how to look, and writes what it planted into a file, for later.

Time goes back while the scene is filled: messages and dead letters are hours old when it stands.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple
from unittest import mock

import rmq
from rmq.features.topic_admin.service import Sampler
from rmq.features.workers import flows as worker_flows
from rmq.features.workers.status import HandlerStatus, write_status
from rmq.http_framework.survey import Survey
from rmq.kernel.core import ids
from rmq.kernel.topic import clock as command_clock
from tests.server.running import serving
from tests.servers import Server as Redis, engines

PREFIX = "night"
TOPICS, MESSAGES, GROUPS = 300, 2_000_000, 5_000
PLANTED = 5
TOPICS_LEAST = 24  # each problem has a topic of its own
GROUPED = 10  # topics with groups
DEAD_SHARE, HELD_SHARE = 0.05, 0.15  # of all messages; the others are due later
HOUR, DAY = 3600.0, 86_400.0
BATCH = 1000
AREAS = (
    "billing", "orders", "stock", "mail", "search", "audit", "media", "pricing", "returns",
    "loyalty", "fraud", "export", "import", "reports", "partners",
)  # fmt: skip
SUBJECTS = (
    "created", "changed", "deleted", "sync", "notify", "index", "render", "archive", "verify",
    "settle", "refund", "invoice", "retry", "enrich", "score", "dispatch", "merge", "cleanup",
    "publish", "digest",
)  # fmt: skip
SERVICES = ("gateway", "ledger", "mailer", "warehouse", "tax", "geo")
ERRORS = tuple(
    text.format(service)
    for service in SERVICES
    for text in (
        "ReadTimeout: no answer in 30 s from {}.example",
        "ConnectionError: {}.example:443 refused the connection",
        "TypeError: the record of {} is not a mapping",
        "ValueError: field {} is negative",
        "HTTPError: 503 from {}.example",
    )
)  # thirty
OPTIONS = ("--maxmemory", "6gb", "--slowlog-log-slower-than", "-1")
RUN_S = 25 * 60  # of the handler that hangs


class Plant(NamedTuple):
    """A problem that the scene has.

    Attributes:
        check: Name of the check that must find it.
        topic: Its topic, or an empty text for a problem of Redis.
        about: What a reader should say.
    """

    check: str
    topic: str
    about: str


class Scene:
    """An installation with problems.

    Args:
        redis: Its Redis, which is empty.
        client: A client with the prefix PREFIX.
        seed: Chooses names, errors and problems.
        scale: Part of the full size.
    """

    def __init__(self, redis: Redis, client: rmq.Client, seed: int, scale: float = 1.0) -> None:
        self.redis, self.client, self._random = redis, client, random.Random(seed)
        self.topics = max(TOPICS_LEAST, round(TOPICS * scale))
        self.messages, self.groups = round(MESSAGES * scale), max(20, round(GROUPS * scale))
        every = [f"{area}-{subject}" for area in AREAS for subject in SUBJECTS]
        self.names = self._random.sample(every, self.topics)
        self._grouped = self.names[:GROUPED]
        # Topics for problems: nothing is sent to them now, because a slot's time never goes back.
        self._free = self.names[GROUPED : GROUPED + len(KINDS)]
        self._without_worker: set[str] = set()
        self._runs: list[tuple[str, str]] = []  # topic and message of handlers that hang
        self._began = time.time()
        self._consumers: list[rmq.Consumer] = []
        self._grouped_work: list[tuple[rmq.Consumer, list[rmq.Delivery]]] = []

    def fill(self, kinds: Sequence[str]) -> list[Plant]:
        """Make everything, with a problem of each of these kinds; return the problems."""
        settings = {name: {"groups": rmq.Groups(on_dead="hold")} for name in self._grouped}
        with self.ago(4 * DAY):
            for name in self.names:
                self.client.topic(name, **settings.get(name, {"max_retries": 0})).open()
        self._fill_dead_letters()
        self._fill_later()
        self._fill_groups()
        planted = [KINDS[kind](self) for kind in kinds]
        self._work_on_groups()
        planted_checks = {each.check for each in planted}
        assert len(planted_checks) == len(kinds), "each kind has a check of its own"
        return planted

    def topic(self, name: str) -> rmq.Topic:
        """A topic of the scene, as it was opened."""
        if name in self._grouped:
            return self.client.topic(name, groups=rmq.Groups(on_dead="hold"))
        return self.client.topic(name, max_retries=0)

    @contextmanager
    def ago(self, seconds: float) -> Iterator[None]:
        """Do something at a time that is over."""
        now_us = round((time.time() - seconds) * 1e6)
        with mock.patch.object(ids, "time") as moved:
            moved.time_ns.return_value = now_us * 1000
            command_clock.set_clock(now_us)
            try:
                yield
            finally:
                command_clock.set_clock(None)

    def pick(self) -> str:
        """A topic for a problem."""
        return self._free.pop(self._random.randrange(len(self._free)))

    # --- what is not a problem ---

    def _fill_dead_letters(self) -> None:
        """Let messages of most topics die, evenly over three days."""
        topics = self.names[GROUPED:]
        each = max(1, round(self.messages * DEAD_SHARE / len(topics)))
        for name in topics:
            errors = self._random.sample(ERRORS, 3)
            for step in range(6):
                with self.ago(3 * DAY * (6 - step) / 6.5):
                    self.kill(name, max(1, each // 6), errors)

    def kill(self, name: str, count: int, errors: Sequence[str]) -> None:
        """Send messages that are rejected with these errors."""
        topic = self.topic(name)
        with topic.consumer() as consumer:
            while count > 0:
                number = min(BATCH, count)
                topic.send_many([self._message(n) for n in range(number)])
                count -= number
                taken = consumer.receive(number, wait=2)
                for place, error in enumerate(errors):
                    part = taken[place :: len(errors)]
                    if part:
                        consumer.reject(part, error)

    def _message(self, n: int, **options: object) -> rmq.Outgoing:
        body = {"n": n, "customer": self._random.randrange(10_000)}
        return rmq.Outgoing(body, type="job.run", **options)  # type: ignore[arg-type]

    def _fill_later(self) -> None:
        """Send messages that are due in some hours."""
        topics = self.names[GROUPED + len(KINDS) :]
        each = round(self.messages * (1 - DEAD_SHARE - HELD_SHARE) / len(topics))
        delays = (self._random.uniform(4, 40) * HOUR for _ in range(BATCH))
        batch = [self._message(n, delay=delay) for n, delay in enumerate(delays)]
        for name in topics:
            topic = self.topic(name)
            for begin in range(0, each, BATCH):
                topic.send_many(batch[: each - begin])

    def _fill_groups(self) -> None:
        """Let each group have a message in flight, and others behind it."""
        names = [f"customer-{n:05}" for n in range(self.groups)]
        depth = max(2, round(self.messages * HELD_SHARE / self.groups))
        for place, name in enumerate(self._grouped):
            own, topic = names[place::GROUPED], self.topic(name)
            for begin in range(0, len(own), 20):
                some = own[begin : begin + 20]
                topic.send_many(
                    [self._message(n, group=g) for n in range(depth) for g in some],
                )
            consumer = topic.consumer(lease=6 * HOUR)
            consumer.__enter__()
            self._consumers.append(consumer)
            taken: list[rmq.Delivery] = []
            while left := len(own) - len(taken):
                more = consumer.receive(min(BATCH, left), wait=2)
                taken += more
                if not more:
                    break
            self._grouped_work.append((consumer, taken))

    def _work_on_groups(self) -> None:
        """Let a message of each topic with groups end, and take the next one of its group."""
        for consumer, taken in self._grouped_work:
            if taken:
                taken.pop(0).ack()
                taken += consumer.receive(1, wait=2)

    # --- problems ---

    def _send_late(self, name: str, count: int, late_s: float) -> None:
        """Send messages that have been due for some time. Ids of a process never go back."""
        due = datetime.now(UTC) - timedelta(seconds=late_s)
        self.topic(name).send_many([self._message(n, at=due) for n in range(count)])

    def plant_no_consumer(self) -> Plant:
        name = self.pick()
        self._without_worker.add(name)
        self._send_late(name, 800, 40 * 60)
        return Plant("no-consumer", name, "nothing handles the topic, for 40 minutes")

    def plant_hanging(self) -> Plant:
        name = self.pick()
        topic = self.topic(name)
        id = str(topic.send(self._message(1).body).id)
        consumer = topic.consumer(lease=6 * HOUR)
        consumer.__enter__()
        self._consumers.append(consumer)
        consumer.receive(1, wait=2)
        self._runs.append((name, id))
        return Plant("long-runs", name, "a handler hangs, for 25 minutes")

    def plant_held_group(self) -> Plant:
        name = self._grouped[self._random.randrange(GROUPED)]
        topic = self.topic(name)
        with self.ago(35 * 60):
            topic.send_many([self._message(n, group="customer-vip") for n in range(400)])
            with topic.consumer() as consumer:
                (delivery,) = consumer.receive(1, wait=2)
                consumer.reject([delivery], "KeyError: 'vat_id'")
        return Plant("groups", name, "group customer-vip is held by a dead letter")

    def plant_failures(self) -> Plant:
        name = self.pick()
        error = "JSONDecodeError: Expecting value: line 1 column 1 (char 0)"
        with self.ago(13 * 60):
            survey = Survey(self.client._transport, PREFIX)
            survey.run_once()
            Sampler(self.client._transport, survey).run_once()
        for minutes in range(8, 0, -1):
            with self.ago(minutes * 60):
                self.kill(name, 60, [error])
        return Plant("failures", name, f"its deliveries fail with {error[:15]}")

    def plant_paused(self) -> Plant:
        name = self.pick()
        with self.ago(3 * HOUR):
            self.client.admin.topic_pause(name, by="ann", why="deploy of the new tax table")
            self.topic(name).send_many([self._message(n) for n in range(500)])
        return Plant("paused", name, "paused three hours ago and forgotten")

    def plant_job(self) -> Plant:
        name = self.pick()
        with self.ago(2 * HOUR):
            job = self.client.admin.job_start(name, "redrive", rate=1, by="ben")
            self.client.admin.job_pause(job.id)
        return Plant("jobs", name, "a redrive is paused in the middle")

    def plant_batch(self) -> Plant:
        name = self.pick()
        with self.ago(5 * HOUR):
            topic = self.topic(name)
            then = topic, self._message(0, delay=30 * HOUR)
            batch = self.client.batch("nightly-import", then=then, timeout=DAY)
            batch.open()
            delay = 30 * HOUR
            batch.send_many(topic, [self._message(n, delay=delay) for n in range(40)])
        return Plant("batches", name, "the program of batch nightly-import never closed it")

    def plant_late(self) -> Plant:
        name = self.pick()
        self._send_late(name, 3000, 25 * 60)
        return Plant("late", name, "messages wait for 25 minutes, its worker is too slow")

    def plant_memory(self) -> Plant:
        with self.redis.raw() as raw:
            used = raw.info("memory")["used_memory"]
            raw.config_set("maxmemory", int(used / 0.9))
        return Plant("maxmemory", "", "the memory of Redis is almost full")

    def plant_eviction(self) -> Plant:
        with self.redis.raw() as raw:
            raw.config_set("maxmemory-policy", "allkeys-lru")
        return Plant("maxmemory-policy", "", "Redis may evict messages")

    # --- workers ---

    def report(self) -> None:
        """Report a worker for each ten topics, as workers do every few seconds."""
        served = [name for name in self.names if name not in self._without_worker]
        for place in range(0, len(served), 10):
            self._report(place // 10, served[place : place + 10])

    def _report(self, place: int, topics: list[str]) -> None:
        age_ms = round((RUN_S + time.time() - self._began) * 1000)
        runs = [(id, topics.index(name), age_ms) for name, id in self._runs if name in topics]

        def write(now_ms: int) -> str:
            handlers = [
                HandlerStatus(name, f"handle_{name.replace('-', '_')}", 4, 0, 0, {}, 0.2)
                for name in topics
            ]
            return write_status(
                at_ms=now_ms, host=f"worker-{place + 1:02}", pid=20 + place, process=None,
                version=rmq.__version__, age_ms=round(DAY * 1000), keep_ms=60_000,
                handlers=handlers, runs=runs,
            )  # fmt: skip

        flow = worker_flows.report(PREFIX, f"{place + 1:08x}", write, 60_000)
        self.client._transport.run(flow)

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Let workers report while something else is done."""
        stop = Event()

        def run() -> None:
            while not stop.wait(5):
                self.report()
                self._work_on_groups()

        self.report()
        thread = Thread(target=run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            for consumer in self._consumers:
                consumer.__exit__(None, None, None)


KINDS: dict[str, Callable[[Scene], Plant]] = {
    "no-consumer": Scene.plant_no_consumer, "hanging": Scene.plant_hanging,
    "held-group": Scene.plant_held_group, "failures": Scene.plant_failures,
    "paused": Scene.plant_paused, "job": Scene.plant_job, "batch": Scene.plant_batch,
    "late": Scene.plant_late, "eviction": Scene.plant_eviction,
    # Last: it depends on what the others store.
    "memory": Scene.plant_memory,
}  # fmt: skip


def chosen(seed: int) -> list[str]:
    """The kinds of problems that a seed chooses."""
    return sorted(random.Random(seed).sample(list(KINDS), PLANTED), key=list(KINDS).index)


def main() -> None:
    """Make the scene, and keep it until SIGINT."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="default: random")
    parser.add_argument("--scale", type=float, default=1.0, help="part of the full size; default 1")
    parser.add_argument("--answers", type=Path, default=Path(tempfile.gettempdir()) / "night.json")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    began = time.monotonic()
    redis = Redis(list(engines().values())[-1], *OPTIONS, aof=True)
    with redis.raw() as raw:
        raw.config_set("appendfsync", "everysec")
    try:
        with rmq.Client(redis.url, prefix=PREFIX) as client:
            scene = Scene(redis, client, seed, options.scale)
            planted = scene.fill(chosen(seed))
            options.answers.write_text(
                json.dumps(
                    {"seed": seed, "planted": [each._asdict() for each in planted]}, indent=1
                )
            )
            with scene.reporting(), serving(redis.url, PREFIX) as server:
                print(f"{scene.topics} topics, {scene.messages:,} messages, {scene.groups} groups")
                print(f"filled in {time.monotonic() - began:.0f} s; the answers: {options.answers}")
                print(f"console: {server.url}/console")
                print(f"command line: export RMQ_URL={redis.url} RMQ_PREFIX={PREFIX}; rmq --help")
                print("the end: Ctrl-C", flush=True)
                signal.sigwait({signal.SIGINT, signal.SIGTERM})
    finally:
        redis.stop()
        shutil.rmtree(redis.dir, ignore_errors=True)


if __name__ == "__main__":
    main()
