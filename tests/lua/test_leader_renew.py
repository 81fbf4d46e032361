"""leader_renew.lua on a real server."""

from __future__ import annotations

import pytest
import redis

from rmq.kernel.core.keys import leader_key
from rmq.kernel.transport import leader


@pytest.fixture
def key(name):
    return leader_key(name)


def renew(box, server="a", hold_ms=10_000):
    return box.run(leader.leader_renew(box.handle.name, server, hold_ms))


def test_first_server_leads_and_leads_on_when_it_asks_again(box, raw, name, key):
    assert renew(box) == (True, "a", 10_000)
    assert (raw.get(key), 9000 < raw.pttl(key) <= 10_000) == (b"a", True)

    assert renew(box, hold_ms=20_000) == (True, "a", 20_000)
    assert (raw.get(key), 19_000 < raw.pttl(key) <= 20_000) == (b"a", True)


def test_another_server_is_told_who_leads_and_changes_nothing(box, raw, name, key):
    renew(box)
    raw.pexpire(key, 5000)

    reply = renew(box, "b")

    assert (reply.leads, reply.leader, 4000 < reply.left_ms <= 5000) == (False, "a", True)
    assert (raw.get(key), 4000 < raw.pttl(key) <= 5000) == (b"a", True)


def test_another_server_leads_once_the_time_has_ended(box, raw, name, key):
    renew(box)
    raw.delete(key)  # as its expiry does

    assert renew(box, "b").leads
    assert raw.get(key) == b"b"
    assert not renew(box, "a").leads


def test_leadership_is_taken_and_renewed_at_maxmemory(box, raw, name, key):
    raw.config_set("maxmemory", "1")
    try:
        with pytest.raises(redis.ResponseError, match="maxmemory"):
            raw.set(name, "x")
        assert renew(box).leads
        assert renew(box).leads
    finally:
        raw.config_set("maxmemory", "0")
