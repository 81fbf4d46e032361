"""progress.lua on a real server."""

from __future__ import annotations

import pytest
import redis

from rmq.features.messages import scripts as messages_scripts
from rmq.kernel.core.ids import member_of
from rmq.kernel.core.keys import results_channel
from rmq.kernel.results import entry
from rmq.kernel.results.scripts import ProgressReply, progress
from tests.lua.box import Box, Lease

DETAILS = entry.encode_progress(0.5, "half", 2, "worker")


def report(box: Box, lease: Lease, details: bytes = DETAILS) -> ProgressReply:
    reply: ProgressReply = box.run(progress(box.keys, lease.id, lease.receipt, details))
    return reply


def test_progress_is_stored_and_told_to_waiting_senders(box: Box) -> None:
    id = box.one(keep=60)
    lease = box.take_one()
    listener = box.redis.pubsub()
    listener.subscribe(results_channel("rmq", box.handle.name, box.index))
    listener.get_message(timeout=5)
    before = box.state()

    assert report(box, lease) is ProgressReply.STORED

    stored = b"r" + box.clock.now_ms.to_bytes(6, "big") + DETAILS
    assert box.changed(before) == {("results", id): stored}
    decoded = entry.decode(stored)
    assert decoded == entry.Entry(
        entry.RUNNING, box.clock.now_ms, "worker", 2, fraction=0.5, text="half"
    )
    told = listener.get_message(timeout=5)
    assert told["data"] == b"progress " + member_of(id)
    listener.close()


def test_a_second_report_replaces_the_first(box: Box) -> None:
    id = box.one(keep=60)
    lease = box.take_one()
    report(box, lease, b"first")
    before = box.state()
    box.clock.advance(1)

    assert report(box, lease) is ProgressReply.STORED
    assert report(box, lease) is ProgressReply.STORED

    assert list(box.changed(before)) == [("results", id)]


def test_it_forgets_when_an_earlier_message_of_this_id_is_forgotten(box: Box) -> None:
    id = box.one(keep=60)
    lease = box.take_one()
    box.redis.zadd(box.keys.keeping, {member_of(id): 1})

    assert report(box, lease) is ProgressReply.STORED

    assert "keeping" not in box.state()


def test_without_a_lease_nothing_is_stored(box: Box) -> None:
    box.one(keep=60)
    lease = box.take_one()
    box.release(lease)
    again = box.take_one()
    before = box.state()

    assert report(box, lease) is ProgressReply.LOST
    assert report(box, again._replace(receipt=again.receipt + 1000)) is ProgressReply.LOST
    assert report(box, again._replace(id=box.ids()[0])) is ProgressReply.LOST
    assert box.changed(before) == {}


def test_a_message_without_the_mark_stores_nothing(box: Box) -> None:
    box.one(priority=200)
    plain = box.take_one()
    assert report(box, plain) is ProgressReply.NOT_KEPT
    box.one(keep=60)
    before = box.state()

    assert report(box, plain) is ProgressReply.NOT_KEPT
    assert box.changed(before) == {}


@pytest.mark.parametrize("keep", [None, 60])
def test_it_tells_that_the_cancellation_was_requested(box: Box, keep: int | None) -> None:
    id = box.one(keep=keep)
    lease = box.take_one()
    cancel = messages_scripts.cancel(box.handle, box.keys, box.session(), id, running=True)
    assert box.run(cancel) == "requested"
    before = box.state()

    assert report(box, lease) is ProgressReply.CANCELLED
    assert box.changed(before) == {}


def test_details_have_at_most_4096_bytes(box: Box) -> None:
    box.one(keep=60)
    lease = box.take_one()
    before = box.state()

    with pytest.raises(redis.ResponseError, match="RMQARG details"):
        report(box, lease, bytes(4097))
    assert box.changed(before) == {}
    assert report(box, lease, bytes(4096)) is ProgressReply.STORED


def test_it_is_refused_at_maxmemory(tight: Box) -> None:
    tight.one(keep=60)
    lease = tight.take_one()
    tight.redis.config_set("maxmemory", 1)
    before = tight.state()

    with pytest.raises(redis.ResponseError, match=r"OOM|maxmemory"):
        report(tight, lease)

    assert tight.changed(before) == {}
