"""A Redis user who may not publish: a script does its whole work, and only the signal is missing.

Since Redis 7 that is every user whose ACL does not name channels.
"""

from __future__ import annotations

from typing import Any

import pytest
import redis

from rmq.kernel.core.groups import Groups
from rmq.kernel.topic import scripts as topic_scripts
from rmq.kernel.transport.lua import script_loader
from tests.lua.box import Box
from tests.lua.calls import CALLS
from tests.lua.furnished import furnish
from tests.lua.group import pause, resume, send_in

USERS = {"no channels": ("+@all", "resetchannels"), "no command": ("+@all", "-publish", "&*")}
SLEEPS_UNTIL = 9_999_999_999_999
# What each of these does in a furnished slot makes work for a sleeping consumer.
WAKING = (
    "ack_then", "event_deliver", "lease_release", "merge", "nack", "pending_send", "publish",
    "query_fail",    "query_release", "redrive", "redrive_send", "release", "reschedule",
    "rollback_expired_leases", "schedule_send", "send",
)  # fmt: skip
# They signal where they end a batch in order.
FREEING = ("ack", "query_reject", "query_settle", "reject")
# Where they let the next message of a group out: test_group_changes.
LETTING_OUT = ("cancel", "drop_expired", "purge")
# They only tell the senders that wait for results: test_results.
TELLING = ("pending_settle", "progress", "query_take")
SILENT = ("tidy", "trash")  # they store ends of members for batches, and publish nothing
PROBING = ("next_ready", "prepare", "withdraw")  # for credits: test_credits


@pytest.fixture(params=USERS)
def limited(request: pytest.FixtureRequest, raw: redis.Redis) -> redis.Redis:
    """A client of a user who may do anything but publish."""
    raw.execute_command(
        "ACL", "SETUSER", "mute", "reset", "on", "nopass", "~*", *USERS[request.param]
    )
    port = raw.connection_pool.connection_kwargs["port"]
    client = redis.Redis(port=port, username="mute", password="any", protocol=2)
    with pytest.raises(redis.exceptions.ResponseError, match="permission"):
        client.publish("rmq:{x}:wake", "0")
    return client


def test_every_script_that_signals_is_looked_at_here() -> None:
    signalling = {
        name for name in script_loader.names() if "'PUBLISH'" in script_loader.load(name).text
    }
    assert signalling == {
        *WAKING, *FREEING, *LETTING_OUT, *PROBING, *TELLING, *SILENT, "slot",
        "group_resume",
    }  # fmt: skip


@pytest.mark.parametrize("script", WAKING)
def test_a_user_without_channels_gets_the_same_reply_and_all_is_written(
    box: Box, limited: redis.Redis, script: str
) -> None:
    # The merge in an empty slot: its window is the first thing due.
    command = box.merge_command(*box.ids()) if script == "merge" else CALLS[script](furnish(box))
    box.redis.hset(box.keys.slot, "waiting", SLEEPS_UNTIL)
    before = box.state()
    allowed, box.redis = box.redis, limited

    reply = box.run(command)

    box.redis = allowed
    written = box.changed(before, replay=True)
    assert written.pop(("slot", "waiting")) == "0", "the call gave nobody reason to wake"
    assert written
    if any(place[0].startswith("replay:") for place in written):
        assert box.run(command) == reply, "the answer was not remembered"
        assert box.changed(before, replay=True) == {**written, ("slot", "waiting"): "0"}


@pytest.mark.parametrize("verb", ["ack", "reject"])
def test_the_last_of_a_batch_in_order_is_settled_without_channels(
    box: Box, limited: redis.Redis, verb: str
) -> None:
    box.send(2)
    leases = box.take(2, ordered=True)
    box.redis.hset(box.keys.slot, "blocked", SLEEPS_UNTIL)
    allowed, box.redis = box.redis, limited

    assert getattr(box, verb)(*leases) == ("11" if verb == "ack" else "dd")

    box.redis = allowed
    assert "blocked" not in box.state()["slot"]
    assert "prepare" not in box.state()


def test_the_end_of_a_pause_is_written_without_channels(box: Box, limited: redis.Redis) -> None:
    box.redis.hset(box.keys.slot, "paused", 1)
    values = box.settings.for_slot()
    allowed, box.redis = box.redis, limited

    assert box.run(topic_scripts.slot(box.handle, box.keys, box.created, values, 1)) == 1

    box.redis = allowed
    assert "paused" not in box.state()["slot"]


def test_a_group_is_resumed_without_channels(make_box: Any, limited: redis.Redis) -> None:
    box = make_box(groups=Groups())
    sent = send_in(box, "g", 2)
    pause(box, "g")
    box.redis.hset(box.keys.slot, "waiting", SLEEPS_UNTIL)
    allowed, box.redis = box.redis, limited

    assert resume(box, "g")

    box.redis = allowed
    assert box.state()["slot"]["waiting"] == "0"
    assert box.take_one().id == sent[0]
