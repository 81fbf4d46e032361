"""topic.lua on a real server."""

from __future__ import annotations

import pytest

from rmq.kernel.core.codec import JSON
from rmq.kernel.core.settings import Settings, from_redis
from rmq.kernel.topic import clock as command_clock, scripts
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.sessions import ReplaySessions
from tests.lua.box import Box


@pytest.fixture
def handle(name):
    return TopicContext("rmq", name, JSON, ReplaySessions(), {})


@pytest.fixture
def run(raw):
    """Runs a command that needs no slot."""

    def run(command):
        return command.parse(
            raw.eval(command.script.text, len(command.keys), *command.keys, *command.args)
        )

    return run


def test_topic_is_created_once_with_the_first_callers_settings(raw, handle, run, clock):
    settings = Settings(slots=3)

    made = run(scripts.topic(handle, settings.to_redis()))

    stamp = str(clock.now_us)
    assert made == scripts.TopicReply(1, {"created": stamp} | settings.to_redis())
    kept = {k.decode(): v.decode() for k, v in raw.hgetall(handle.key).items()}
    assert kept == made.kept
    assert from_redis(handle.name, made.kept) == settings


def test_second_caller_opens_what_is_there_and_changes_nothing(raw, handle, run, clock):
    first = run(scripts.topic(handle, Settings(slots=3).to_redis()))
    before = raw.hgetall(handle.key)
    clock.advance(5)

    second = run(scripts.topic(handle, Settings(slots=8).to_redis()))

    assert second == first._replace(state=0)
    assert run(scripts.topic(handle, None)) == second
    assert raw.hgetall(handle.key) == before


def test_looking_at_a_missing_topic_creates_nothing(raw, handle, run):
    assert run(scripts.topic(handle, None)) == scripts.TopicReply(-1, {})
    assert not raw.exists(handle.key)


def test_without_a_tests_time_the_servers_clock_is_asked(raw, handle, run):
    command_clock.set_clock(None)
    before = raw.time()

    stamp = int(run(scripts.topic(handle, Settings().to_redis())).kept["created"])

    after = raw.time()
    assert before[0] * 10**6 + before[1] <= stamp <= after[0] * 10**6 + after[1]


def test_topics_of_one_server_do_not_see_each_other(raw, name, clock):
    one, other = (Box(raw, f"{name}{letter}", clock) for letter in "ab")
    one.one()

    assert set(other.state()) == {"slot"}
