"""cancel.lua on a real server."""

from __future__ import annotations

import pytest
import redis

from rmq.features.messages import scripts
from rmq.kernel.core import ids
from rmq.kernel.topic import scripts as topic_scripts
from tests.lua.box import GONE


def cancel(box, id):
    return box.run(scripts.cancel(box.handle, box.keys, box.session(), id))


def test_cancel_removes_a_waiting_message_whole_and_remembers_its_id(box):
    id, other = box.send(2, kept=True)
    before = box.state()
    session = box.session()

    assert box.run(scripts.cancel(box.handle, box.keys, session, id)) == "cancelled"

    assert box.changed(before, replay=True) == {
        ("slot", "cancelled"): "1",
        ("slot", "settled_turn"): str(box.clock.now_ms // 60_000),
        ("store", id): GONE,
        ("records", id): GONE,
        (box.settled_set(), id): True,
        (f"replay:{session.name[1:].decode()}",): b"1:1",
    }
    assert box.order() == [other]
    assert box.run(box.send_command([id])).codes == "d"


def test_cancel_frees_the_dedup_key_of_a_message(box):
    id = ids.derive(b"k", box.keys.index, 0)
    box.run(box.send_command([id]))

    assert cancel(box, id) == "cancelled"

    assert box.run(box.send_command([id])).codes == ""


def test_cancel_of_a_retry_clears_its_failure(box):
    id = box.one(kept=True)
    box.nack(box.take_one())

    assert cancel(box, id) == "cancelled"
    assert {k for k in box.state() if not k.startswith("replay")} == {"slot", box.settled_set()}


def test_cancel_of_a_merge_window_clears_the_index(box):
    id, _ = box.merge()
    other, _ = box.merge(key=b"other")

    assert cancel(box, id) == "cancelled"
    assert set(box.state()["merge"]) == {b"other"}
    assert box.state()["merge"][b"other"][:16] == other


def test_cancel_of_an_older_window_leaves_the_index_to_the_newer(box):
    older, _ = box.merge(body=b"x" * 90, mode="collect", most=150)
    newer, _ = box.merge(body=b"x" * 90, mode="collect", most=150)

    assert cancel(box, older) == "cancelled"
    assert box.state()["merge"][b"key"][:16] == newer


@pytest.mark.parametrize("kept", [None, b"", b"\x06short", b"\x07" + bytes(7), b"\x04" + bytes(8)])
def test_message_whose_record_is_missing_or_cut_short_can_be_cancelled(box, kept):
    id = box.one()
    box.break_record(id, kept)

    assert cancel(box, id) == "cancelled"
    assert box.order() == []
    assert "records" not in box.state()


def test_many_messages_have_a_letter_each_and_the_call_may_come_twice(box):
    dead, held, other = box.send(3)
    leases = {lease.id: lease for lease in box.take(3)}
    box.reject(leases[dead])
    plain, kept, window = *box.send(1), *box.send(1, kept=True), box.merge()[0]
    before, session = box.state(), box.session()
    wanted = [plain, dead, held, plain, kept, box.ids()[0], window]

    def command():
        return topic_scripts.cancel(box.handle, box.keys, session, wanted, running=False)

    assert box.twice(command) == "1di0101"
    changed = box.changed(before, replay=True)
    assert changed.pop((f"replay:{session.name[1:].decode()}",)) == b"1:1di0101"
    assert changed.pop(("slot", "cancelled")) == "3"
    assert {place for place in changed if changed[place] is GONE} >= {
        (queue, id) for queue in ("store", "records") for id in (plain, kept, window)
    }
    assert not [place for place in changed if dead in place or held in place or other in place]
    assert "merge" not in box.state()
    assert box.order() == []
    assert box.run(box.send_command([kept])).codes == "d"


def test_many_deliveries_get_a_request_each(box):
    leases = box.take(3) if box.send(3) else []
    (waiting,) = box.send(1)
    session = box.session()
    ids = [leases[0].id, waiting, leases[2].id, leases[0].id]

    def command():
        return topic_scripts.cancel(box.handle, box.keys, session, ids, running=True)

    assert box.twice(command) == "r1r0"
    assert (box.counter("cancelling"), box.counter("cancelled")) == (2, 1)
    assert box.nack(*leases) == "crc"
    assert "cancelling" not in box.state()["slot"]


@pytest.mark.parametrize("count", [0, 201])
def test_wrong_number_of_messages_is_refused(box, count):
    box.send(1)
    before = box.state()

    with pytest.raises(redis.ResponseError, match="RMQARG"):
        box.run(topic_scripts.cancel(box.handle, box.keys, box.session(), box.ids(count)))
    assert box.changed(before) == {}


def test_without_a_dedup_window_the_id_is_not_remembered(make_box):
    box = make_box(dedup_window_ms=0)
    cancel(box, box.one())

    assert {k for k in box.state() if not k.startswith("replay")} == {"slot"}
