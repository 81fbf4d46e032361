"""Nothing that the user of one topic writes stops the work for other topics, or hides them.

A table: each role writes each kind of junk to each key that it can reach, and then every reader
works. What a role may not write is refused, and counts as passed.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator

import pytest
import redis

from rmq.http_framework.survey import Survey
from rmq.kernel.topic import overview
from rmq.kernel.transport.acl import ROLES, Role
from tests.acl.scene import PASSWORD, version_of
from tests.acl.tenants import JUNK, OF_TOPIC, SHARED, Place, played_storm
from tests.servers import Server


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


@pytest.mark.parametrize("role", ["worker", pytest.param("producer", marks=pytest.mark.slow)])
def test_junk_in_the_keys_of_one_topic_stops_no_other(place: Place, role: Role) -> None:
    assert played(place, role, OF_TOPIC[:4], QUICK) > 0


@pytest.mark.parametrize("role", ["producer", pytest.param("worker", marks=pytest.mark.slow)])
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


def test_messages_and_schedules_of_a_topic_outlive_hostile_writes(
    each_server: Server, name: str
) -> None:
    found = played_storm(each_server, f"s{name}"[:60], random.Random(1), steps=10)

    print(f"FIG hostile writes: {found.figures}")


def test_the_storm_sees_a_server_that_takes_every_member_for_a_name(
    each_server: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control."""
    monkeypatch.setattr(overview, "NAME", re.compile(".*", re.DOTALL))

    def play_some() -> None:
        for seed in range(5):
            played_storm(each_server, f"s{name}"[:60], random.Random(seed))

    with pytest.raises(AssertionError, match="survey stops"):
        play_some()
