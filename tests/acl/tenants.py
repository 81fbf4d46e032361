"""Two topics of one Redis: the user of one writes junk wherever its rules permit."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from typing import Any

import redis

import rmq
from rmq.features.audit.service import Audits
from rmq.features.dead_letters.jobs.service import Jobs
from rmq.features.dead_letters.service import Expiry
from rmq.features.messages.service import Rollback
from rmq.features.offloaded.service import Offloading
from rmq.features.schedules.service import Schedules
from rmq.features.spark.service import Queries
from rmq.features.tokens import flows as token_flows
from rmq.features.topic_admin.service import Resizes, Retention, Sampler
from rmq.features.workers import flows as worker_flows
from rmq.features.workers.service import Wanted, WorkerRecords
from rmq.http_framework.service import ServerState
from rmq.http_framework.survey import Survey
from rmq.kernel.topic import clock as command_clock, overview
from rmq.kernel.transport.acl import Role, acl_rules
from rmq.server.metrics import ServerMetrics
from tests.acl.scene import PASSWORD, version_of
from tests.faults.storm import Played, insist
from tests.servers import Server

DEEP = b"[" * 50_000 + b"]" * 50_000
JUNK = {
    "no UTF-8": b"\xff\xfe<script>",
    "empty": b"",
    "long": b"x" * 100_000,
    "a large number": b"9" * 400,
    "a negative number": b"-1",
    "not a number": b"nan",
    "deep JSON": DEEP,
    "other JSON": b'{"at_ms": 1e999, "handlers": [[1]], "id": null}',
    "a list of JSON": b"[null, [], {}, 1e999]",
    "bad msgpack": b"\xdd\xff\xff\xff\xff\xc1",
    "lines": b"1\n2",
}
# The keys of topic `mine`, and those that all topics share.
OF_TOPIC = (
    "{mine}:topic", "{mine}:history", "{mine_0}:slot", "{mine_0}:schedules",
    "{mine_0}:schedule_times", "{mine_0}:queries", "{mine_0}:prepare", "{mine_0}:store",
)  # fmt: skip
SHARED = (
    "topics", "scheduled", "workers", "worker:feedface", "jobs", "audit_trail", "tokens",
    "tokens_used",
)  # fmt: skip


class Place:
    """Two topics of one Redis: `mine`, whose user writes junk, and `other`."""

    def __init__(self, server: Server, prefix: str) -> None:
        self.server, self.prefix = server, prefix
        self.raw = server.raw()
        self.client = rmq.Client(server.url, prefix=prefix, retry_for=2)
        self.clear()

    def clear(self) -> None:
        """Begin again, with both topics as they should be."""
        command_clock.set_clock(None)
        for key in self.raw.scan_iter(f"{self.prefix}:*", count=1000):
            self.raw.unlink(key)
        self.client.close()
        self.client = rmq.Client(self.server.url, prefix=self.prefix, retry_for=2)
        for name in ("mine", "other"):
            topic = self.client.topic(name, lease=2)
            topic.send(1)
            topic.every("tick", every=60.0, body=1).declare()
        self.client.admin.token_create("t", "viewer")
        run = self.client._transport.run
        run(worker_flows.report(self.prefix, "feedface", lambda now_ms: "{}", 60_000))
        self.client.topic("other").consumer().receive()  # its lease is to be given back

    def key(self, name: str) -> str:
        return f"{self.prefix}:{name}"

    def write(self, role: Role, name: str, junk: bytes) -> int:
        """Write junk as a role; return how many writes Redis took."""
        rules = acl_rules(
            role, topics=["mine"], prefix=self.prefix, server_version=version_of(self.server)
        )
        self.raw.execute_command(
            "ACL", "SETUSER", self.prefix, "reset", "on", f">{PASSWORD}", *rules.words()
        )
        url = self.server.url.replace("redis://", f"redis://{self.prefix}:{PASSWORD}@")
        key, done = self.key(name), 0
        kind = self.raw.type(key)
        fields = self.raw.hkeys(key) if kind == b"hash" else []
        writes: list[tuple[Any, ...]] = [("HSET", key, field, junk) for field in fields]
        writes += [("SADD", key, junk), ("HSET", key, junk, junk), ("ZADD", key, "inf", junk)]
        writes += [("ZADD", key, "9e15", junk), ("SET", key, junk), ("RPUSH", key, junk)]
        with redis.Redis.from_url(url) as user:
            for words in writes:
                with contextlib.suppress(redis.exceptions.NoPermissionError):
                    try:
                        user.execute_command(*words)
                    except redis.exceptions.ResponseError as error:
                        if "WRONGTYPE" not in str(error):
                            raise
                        continue
                    done += 1
        return done

    def replace(self, role: Role, name: str) -> int:
        """Put a value of another type in the place of a key, if the role may delete it."""
        self.write(role, name, b"1")  # the user exists
        url = self.server.url.replace("redis://", f"redis://{self.prefix}:{PASSWORD}@")
        with redis.Redis.from_url(url) as user:
            try:
                user.execute_command("DEL", self.key(name))
                user.execute_command("HSET", self.key(name), "a", "b")
            except redis.exceptions.NoPermissionError:
                return 0
        return 1

    def read(self) -> None:
        """Let every service and every reader of all topics work; check what topic `other` gets."""
        command_clock.set_clock(
            round((time.time() + 130) * 1_000_000)
        )  # its lease and schedule are due
        with rmq.Client(self.server.url, prefix=self.prefix, retry_for=2) as client:
            transport, run = client._transport, client._transport.run
            survey = Survey(transport, self.prefix)
            with contextlib.suppress(rmq.ScriptFailed):
                survey.run_once()  # a list of another type is dropped
            survey.run_once()
            assert "other" in survey.topics
            queries, jobs = Queries(transport, survey), Jobs(transport, self.prefix)
            wanted = Wanted(transport, survey)
            assert Schedules(transport, self.prefix).run_once() >= 1
            assert Rollback(transport, survey).run_once() >= 1
            for service in (Retention(transport, survey), Sampler(transport, survey), queries,
                            Expiry(transport, survey), Audits(transport, survey), wanted,
                            WorkerRecords(transport, self.prefix), Offloading(transport, survey),
                            Resizes(transport, survey), jobs):  # fmt: skip
                service.run_once()
            metrics = ServerMetrics(
                lambda: survey.topics, ServerState(), lambda: queries.held, survey.before,
                lambda: wanted.by_topic,
            ).text()  # fmt: skip
            assert b'topic="other"' in metrics
            admin = client.admin
            names = admin.topics()
            assert "other" in names
            found = {each.name: each.error for each in run(overview.overview(self.prefix, names))}
            assert found["other"] is None
            assert [state.sent for state in admin.schedules("other")] == [1]
            admin.samples("other")
            for read in (admin.workers, admin.jobs, admin.audit_trail, admin.tokens):
                read()
            run(token_flows.tokens_by_id(self.prefix))
            for read_one in (admin.stats, admin.schedules, admin.samples, admin.queries):
                with contextlib.suppress(rmq.RMQError):  # of its own topic
                    read_one("mine")

    def close(self) -> None:
        command_clock.set_clock(None)
        self.raw.execute_command("ACL", "DELUSER", self.prefix)
        self.client.close()
        self.raw.close()


STEPS, DRAINS = 25, 60
WRITERS: tuple[Role, ...] = ("producer", "consumer", "worker", "operator", "server")


def played_storm(server: Server, prefix: str, rng: random.Random, steps: int = STEPS) -> Played:
    """Let all roles write junk at random while topic `other` is used; insist that it loses nothing.

    Messages of `other` are taken and acked, or left to a lease that a server gives back. Its
    schedule is due in each step. A server looks at all keys before each step.
    """
    place = Place(server, prefix)
    try:
        return _played(place, rng, steps)
    finally:
        place.clear()
        place.close()


def _played(place: Place, rng: random.Random, steps: int) -> Played:
    client, wrote, acked = place.client, Counter[str](), Counter[int]()
    other = client.topic("other")
    transport = client._transport
    survey = Survey(transport, place.prefix)
    queries, wanted = Queries(transport, survey), Wanted(transport, survey)
    services = [
        survey, Rollback(transport, survey), Schedules(transport, place.prefix),
        Retention(transport, survey), Sampler(transport, survey), Expiry(transport, survey),
        Audits(transport, survey), queries, wanted, Jobs(transport, place.prefix),
        WorkerRecords(transport, place.prefix), Offloading(transport, survey),
        Resizes(transport, survey),
    ]  # fmt: skip
    now_s = time.time()
    command_clock.set_clock(round(now_s * 1_000_000))  # a lease ends by this clock alone

    def serve() -> None:
        nonlocal now_s
        now_s += 90
        command_clock.set_clock(round(now_s * 1_000_000))
        survey._whole_at = 0.0
        for service in services:
            try:
                service.run_once()
            except Exception as error:
                raise AssertionError(
                    f"{service.name} stops, after {dict(wrote)}: {error!r}"
                ) from error
        insist("other" in survey.topics, f"topic other is not served, after {dict(wrote)}")

    def take(share: float) -> int:
        with other.consumer() as consumer:
            taken = consumer.receive(20)
            for delivery in taken:
                if rng.random() < share:
                    delivery.ack()
                    acked[delivery.body] += 1
        return len(taken)

    sent = [1]  # by the scene
    for step in range(steps):
        role = rng.choice(WRITERS)
        keys = [name for name in OF_TOPIC + SHARED if not name.startswith("token")]
        name, kind = rng.choice(keys), rng.choice([*JUNK, "another type"])
        if kind == "another type":
            count = place.replace(role, name)
        else:
            count = place.write(role, name, JUNK[kind])
        wrote[role] += count
        sent.append(1000 + step)
        other.send(sent[-1])
        take(0.5)
        serve()
    for _ in range(DRAINS):
        if not take(1.0) and set(sent) <= set(acked):
            break
        serve()
    insist(set(sent) <= set(acked), f"lost {sorted(set(sent) - set(acked))}, after {dict(wrote)}")
    ticks = client.admin.schedule("other", "tick").sent
    insist(ticks >= steps, f"{ticks} ticks in {steps} steps, after {dict(wrote)}")
    never = Counter(role for role in ("producer", "worker") if not wrote[role])
    return Played(f"{len(sent)} messages, {ticks} ticks, writes {dict(wrote)}", never)
