"""Messages of groups in a slot under test."""

from __future__ import annotations

from rmq.features.groups import scripts
from rmq.features.groups.scripts import GroupState
from rmq.kernel.core.groups import mark_of
from rmq.kernel.core.record import with_headers
from rmq.kernel.producer import scripts as producer_scripts
from rmq.kernel.producer.encode import Outgoing, encode_headers
from tests.lua.box import Box


def send_in(
    box: Box,
    group: str,
    count: int = 1,
    priority: int = 100,
    share_key: str | None = None,
    weight: int = 1,
) -> list[bytes]:
    """Send messages of a group; their ids, of which each has a time of its own."""
    mark = mark_of(group, share_key, weight)
    sent = []
    for _ in range(count):
        (id,) = box.ids()
        part = with_headers(*box.part(b"", priority=priority), encode_headers(Outgoing(None), mark))
        reply = box.run(producer_scripts.send(box.handle, box.keys, box.session(), [id], part, {}))
        assert reply.letters == "", reply
        sent.append(id)
    return sent


def states(box: Box) -> dict[str, GroupState]:
    """The groups of the slot, by name."""
    return {state.group: state for state in box.run(scripts.groups(box.keys)).groups}


def pause(box: Box, name: str) -> int:
    """Pause a group."""
    return int(box.run(scripts.group_pause(box.keys, name)))


def resume(box: Box, name: str) -> bool:
    """Resume a group."""
    return bool(box.run(scripts.group_resume(box.handle, box.keys, name, "paused")))


def release(box: Box, name: str) -> bool:
    """Release a group that a dead letter holds."""
    return bool(box.run(scripts.group_resume(box.handle, box.keys, name, "dead")))
