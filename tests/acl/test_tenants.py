"""Nothing that the user of one topic writes stops the work for other topics, or hides them.

A table: each role writes each kind of junk to each key that it can reach, and then every reader
works. What a role may not write is refused, and counts as passed.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

import rmq
from rmq.features.audit.service import Audits
from rmq.features.dead_letters.jobs.service import Jobs
from rmq.features.dead_letters.service import Expiry
from rmq.features.messages.service import Rollback
from rmq.features.offloaded.service import Offloading
from rmq.features.queries.service import Queries
from rmq.features.schedules.service import Schedules
from rmq.features.tokens import flows as token_flows
from rmq.features.topic_admin.service import Resizes, Retention, Sampler
from rmq.features.workers import flows as worker_flows
from rmq.features.workers.service import Wanted, WorkerRecords
from rmq.kernel.topic import context, overview
from rmq.kernel.transport.acl import ROLES, Role, acl_rules
from rmq.server.metrics import ServerMetrics
from rmq.web.service import ServerState
from rmq.web.survey import Survey
from tests.acl.scene import PASSWORD, version_of
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
        context.set_clock(None)
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
        context.set_clock(round((time.time() + 130) * 1_000_000))  # its lease and schedule are due
        with rmq.Client(self.server.url, prefix=self.prefix, retry_for=2) as client:
            transport, run = client._transport, client._transport.run
            survey = Survey(transport, self.prefix)
            with contextlib.suppress(rmq.ScriptFailed):
                survey.run_once()  # a list of another type is dropped
            survey.run_once()
            assert "other" in survey.topics
            queries, jobs = Queries(transport, survey), Jobs(transport, self.prefix)
            wanted = Wanted(transport, self.prefix, survey)
            assert Schedules(transport, self.prefix).run_once() >= 1
            assert Rollback(transport, survey).run_once() >= 1
            for service in (Retention(transport, survey), Sampler(transport, survey), queries,
                            Expiry(transport, survey), Audits(transport, survey), wanted,
                            WorkerRecords(transport, self.prefix), Offloading(transport, survey),
                            Resizes(transport, self.prefix, survey), jobs):  # fmt: skip
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
            admin.history("other")
            for read in (admin.workers, admin.jobs, admin.audit_trail, admin.tokens):
                read()
            run(token_flows.tokens_by_id(self.prefix))
            for read_one in (admin.stats, admin.schedules, admin.history, admin.queries):
                with contextlib.suppress(rmq.RMQError):  # of its own topic
                    read_one("mine")

    def close(self) -> None:
        context.set_clock(None)
        self.raw.execute_command("ACL", "DELUSER", self.prefix)
        self.client.close()
        self.raw.close()


@pytest.fixture
def place(each_server: Server, name: str) -> Iterator[Place]:
    made = Place(each_server, f"p{name}"[:60])
    yield made
    made.close()


def played(place: Place, role: Role, keys: tuple[str, ...], kinds: dict[str, bytes]) -> int:
    """Play a part of the table; return how many writes Redis took."""
    taken = 0
    for name in keys:
        writes: dict[str, Callable[[], int]] = {
            kind: lambda name=name, junk=junk: place.write(role, name, junk)  # type: ignore[misc]
            for kind, junk in kinds.items()
        }
        writes["another type"] = lambda name=name: place.replace(role, name)  # type: ignore[misc]
        for kind, write in writes.items():
            count = write()
            if not count:
                continue
            taken += count
            # Trusted roles may break the lists of all: then their readers say so, and no more.
            try:
                place.read()
            except Exception as error:
                raise AssertionError(f"{role} wrote {kind} to {name}: {error!r}") from error
            place.clear()
    return taken


QUICK = {kind: JUNK[kind] for kind in ("no UTF-8", "a large number", "other JSON")}


@pytest.mark.parametrize("role", ["producer", "worker"])
def test_junk_in_the_keys_of_one_topic_stops_no_other(place: Place, role: Role) -> None:
    assert played(place, role, OF_TOPIC[:4], QUICK) > 0


@pytest.mark.parametrize("role", ["producer", "worker"])
def test_junk_in_the_lists_of_all_topics_stops_no_other(place: Place, role: Role) -> None:
    assert played(place, role, SHARED, QUICK) > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("role", [role for role in ROLES if role not in ("viewer", "admin")])
def test_no_junk_of_any_role_stops_another_topic(place: Place, role: Role) -> None:
    # On Redis 6.2 a server may replace the tokens: then nobody signs in, as it should be.
    shared = tuple(name for name in SHARED if (role, name) != ("server", "tokens"))
    assert played(place, role, OF_TOPIC + shared, JUNK) > 0


@pytest.mark.parametrize("role", ["producer", "consumer", "worker"])
def test_the_lists_of_all_topics_are_not_deleted_by_a_role_that_adds_to_them(
    place: Place, role: Role
) -> None:
    if version_of(place.server) == "6.2":
        pytest.skip("Redis 6.2 has no selectors: docs/security.md")
    place.write(role, "topics", b"x")
    url = place.server.url.replace("redis://", f"redis://{place.prefix}:{PASSWORD}@")
    with redis.Redis.from_url(url) as user:
        for words in (("SREM", "topics", "other"), ("DEL", "topics"), ("UNLINK", "topics"),
                      ("SREM", "scheduled", "x"), ("DEL", "scheduled"),
                      ("DEL", "workers"), ("HSET", "topics", "a", "b")):  # fmt: skip
            with pytest.raises(redis.exceptions.NoPermissionError):
                user.execute_command(words[0], place.key(words[1]), *words[2:])


@pytest.mark.parametrize("as_another_type", [False, True])
def test_a_server_lists_topics_and_schedules_again(place: Place, as_another_type: bool) -> None:
    before = place.raw.smembers(place.key("topics")), place.raw.smembers(place.key("scheduled"))
    place.raw.delete(place.key("topics"), place.key("scheduled"))
    if as_another_type:
        place.raw.hset(place.key("topics"), "a", "b")
        place.raw.zadd(place.key("scheduled"), {"a": 1})

    Survey(place.client._transport, place.prefix).run_once()

    after = place.raw.smembers(place.key("topics")), place.raw.smembers(place.key("scheduled"))
    assert after == before


def test_a_survey_lists_a_topic_again_that_it_knows(place: Place) -> None:
    survey = Survey(place.client._transport, place.prefix)
    survey.run_once()
    place.raw.srem(place.key("topics"), "other")

    survey.run_once()

    assert "other" in survey.topics
    assert place.raw.sismember(place.key("topics"), "other")


def test_a_survey_does_not_list_a_topic_that_is_being_deleted(place: Place) -> None:
    place.raw.hset(place.key("{other}:topic"), "deleting", "1")
    place.raw.srem(place.key("topics"), "other")

    Survey(place.client._transport, place.prefix).run_once()

    assert not place.raw.sismember(place.key("topics"), "other")


def test_the_table_sees_a_reader_that_takes_every_member_for_a_name(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control."""
    monkeypatch.setattr(overview, "NAME", re.compile(".*", re.DOTALL))

    with pytest.raises(AssertionError, match="producer wrote no UTF-8 to topics"):
        played(place, "producer", ("topics",), QUICK)
