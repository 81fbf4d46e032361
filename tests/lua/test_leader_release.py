"""leader_release.lua on a real server."""

from __future__ import annotations

import pytest

from rmq.kernel.core.keys import leader_key
from rmq.kernel.transport import leader


@pytest.fixture
def key(name):
    return leader_key(name)


def release(box, server):
    return box.run(leader.leader_release(box.handle.name, server))


def test_leadership_ends_once(box, raw, name, key):
    box.run(leader.leader_renew(name, "a", 10_000))

    assert release(box, "a") is True
    assert not raw.exists(key)
    assert release(box, "a") is False


def test_release_of_a_server_that_does_not_lead_changes_nothing(box, raw, name, key):
    box.run(leader.leader_renew(name, "b", 10_000))

    assert release(box, "a") is False
    assert (raw.get(key), raw.pttl(key) > 9000) == (b"b", True)
