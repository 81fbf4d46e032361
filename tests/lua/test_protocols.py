"""RESP2 and RESP3: every script answers the same in both."""

from __future__ import annotations

import pytest

from tests.lua.box import Box
from tests.lua.calls import CALLS
from tests.lua.furnished import furnish


def plain(reply):
    """A reply without what differs from slot to slot: ids and texts that hold them."""
    if isinstance(reply, tuple | list):
        return [plain(part) for part in reply]
    if isinstance(reply, dict):
        return {name: plain(part) for name, part in reply.items()}
    return len(reply) if isinstance(reply, bytes) else reply


@pytest.mark.parametrize("script", sorted(CALLS))
def test_reply_is_the_same_in_resp2_and_resp3(each_server, name, clock, script):
    replies = []
    start = clock.now_us
    for protocol in (2, 3):
        client = each_server.raw(protocol=protocol)
        clock.now_us = start
        clock.advance(0)
        box = Box(client, f"{name}-{protocol}", clock)
        furnished = furnish(box)
        command = CALLS[script](furnished)
        raw = box.raw(script, command.keys, command.args)
        command.parse(raw)
        replies.append(plain(raw))
        client.close()

    assert replies[0] == replies[1]


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.fault("F34")
def test_message_lives_its_life_in_either_protocol(each_server, name, clock, protocol):
    client = each_server.raw(protocol=protocol)
    box = Box(client, name, clock)
    body = bytes(range(256))
    id = box.one(body=body, priority=1_048_575)

    assert box.nack(box.take_one()) == "r"
    lease = box.take_one()
    assert (lease.id, lease.left, lease.record[8:]) == (id, 15, body)
    assert box.score(id, "prepare") == lease.receipt
    assert box.ack(lease) == "1"
    client.close()
