"""step.lua on a real server, and what removes its entries."""

from __future__ import annotations

import pytest
import redis

from rmq.features.dead_letters import scripts as dead_letters_scripts
from rmq.features.messages import scripts as messages_scripts
from rmq.kernel.core.ids import member_of
from rmq.kernel.core.steps import BEGUN, CURSOR, DONE, ENTRY_BYTES, LOST, decode_steps
from rmq.kernel.results.scripts import StepCode, StepReply, step
from rmq.kernel.topic import scripts as topic_scripts
from tests.lua.box import GONE, Box, Lease

EMPTY = StepReply(StepCode.STORED, b"")


def call(
    box: Box,
    lease: Lease,
    state: bytes,
    name: bytes = b"charge",
    data: bytes = b"",
    most: int = ENTRY_BYTES,
    wants_entry: bool = False,
) -> StepReply:
    item = (state, name, data)
    command = step(box.keys, lease.id, lease.receipt, item, most, wants_entry)
    reply: StepReply = box.run(command)
    return reply


def item(box: Box, state: bytes, name: bytes, data: bytes = b"") -> bytes:
    """The bytes of an item, spelled apart from lua/lib/records/steps.lua."""
    now = box.clock.now_ms.to_bytes(6, "big")
    return state + bytes((len(name),)) + name + now + len(data).to_bytes(4, "big") + data


def entry_of(id: bytes) -> tuple[str, bytes]:
    return "bodies", member_of(id) + b"s"


def test_a_step_begins_and_is_done(box: Box) -> None:
    id = box.one()
    lease = box.take_one()
    before = box.state()

    assert call(box, lease, BEGUN) == EMPTY

    begun = item(box, BEGUN, b"charge")
    counts = {("slot", "steps"): "1", ("slot", "large"): "1"}
    assert box.changed(before) == {entry_of(id): begun, **counts}

    box.clock.advance(1)
    assert call(box, lease, DONE, data=b"\x01[7]") == EMPTY

    done = item(box, DONE, b"charge", b"\x01[7]")
    assert box.changed(before) == {entry_of(id): done, **counts}
    (shown,) = decode_steps(done)
    assert (shown.name, shown.state, shown.value) == ("charge", "done", [7])


def test_the_same_call_again_changes_nothing(box: Box) -> None:
    box.one()
    lease = box.take_one()
    for state, name, data in ((BEGUN, b"a", b""), (DONE, b"a", b"\x011"), (CURSOR, b"", b"\x012")):
        first = call(box, lease, state, name, data)
        after = box.state()

        assert call(box, lease, state, name, data) == first == EMPTY
        assert box.changed(after) == {}


def test_items_are_replaced_where_they_are(box: Box) -> None:
    id = box.one()
    lease = box.take_one()
    for name in (b"a", b"bb", b""):
        call(box, lease, BEGUN if name else CURSOR, name, b"" if name else b"\x011")
    before = box.state()
    box.clock.advance(5)

    call(box, lease, DONE, b"bb", b"\x01" + b"2" * 300)
    call(box, lease, CURSOR, b"", b"\x01[3]")

    place = entry_of(id)
    assert list(box.changed(before)) == [place]
    entry = box.changed(before)[place]
    assert [(s.name, s.state) for s in decode_steps(entry)] == [
        ("a", "begun"), ("bb", "done"), ("", "cursor"),
    ]  # fmt: skip
    assert entry.endswith(item(box, CURSOR, b"", b"\x01[3]"))


@pytest.mark.parametrize("state", [DONE, LOST])
def test_a_step_that_is_done_does_not_begin_again(box: Box, state: bytes) -> None:
    id = box.one()
    lease = box.take_one()
    call(box, lease, BEGUN)
    call(box, lease, state)
    box.release(lease)
    again = box.take_one()
    before = box.state()

    reply = call(box, again, BEGUN, wants_entry=True)

    assert reply == StepReply(StepCode.DONE, item(box, state, b"charge"))
    assert call(box, again, BEGUN).entry == b""
    assert box.changed(before) == {}
    assert (
        call(box, again, b"", b"", wants_entry=True).entry
        == box.state()["bodies"][member_of(id) + b"s"]
    )


def test_without_a_lease_nothing_is_stored(box: Box) -> None:
    box.one()
    lease = box.take_one()
    call(box, lease, BEGUN)
    box.release(lease)
    again = box.take_one()
    before = box.state()

    for state, name in ((BEGUN, b"x"), (DONE, b"charge"), (LOST, b"x"), (CURSOR, b""), (b"", b"")):
        lost = StepReply(StepCode.LOST, b"")
        assert call(box, lease, state, name, wants_entry=True) == lost
        assert call(box, again._replace(id=box.ids()[0]), state, name) == lost
    assert box.changed(before) == {}


def test_a_cancelled_delivery_begins_no_step_but_ends_one(box: Box) -> None:
    id = box.one()
    lease = box.take_one()
    call(box, lease, BEGUN)
    cancel = messages_scripts.cancel(box.handle, box.keys, box.session(), id, running=True)
    assert box.run(cancel) == "requested"
    before = box.state()

    assert call(box, lease, BEGUN, b"next").code is StepCode.CANCELLED
    assert box.changed(before) == {}
    assert call(box, lease, DONE, data=b"\x017").code is StepCode.STORED
    assert call(box, lease, CURSOR, b"", b"\x018").code is StepCode.STORED


def test_what_has_no_room_changes_nothing(box: Box) -> None:
    box.one()
    lease = box.take_one()
    size = len(item(box, BEGUN, b"charge"))
    assert call(box, lease, BEGUN, most=size - 1).code is StepCode.FULL
    assert call(box, lease, BEGUN, most=size) == EMPTY
    before = box.state()

    assert call(box, lease, BEGUN, b"x", most=size).code is StepCode.FULL
    assert call(box, lease, DONE, data=b"\x01", most=size).code is StepCode.FULL
    assert box.changed(before) == {}
    assert call(box, lease, LOST, most=size) == EMPTY


def test_a_message_has_at_most_a_thousand_steps(box: Box) -> None:
    box.one()
    lease = box.take_one()
    for number in range(1000):
        assert call(box, lease, DONE, b"%d" % number) == EMPTY
    before = box.state()

    assert call(box, lease, BEGUN, b"more").code is StepCode.FULL
    assert box.changed(before) == {}


def test_an_ack_removes_the_entry_and_the_counts(box: Box) -> None:
    box.one()
    lease = box.take_one()
    call(box, lease, BEGUN)

    box.ack(lease)

    state = box.state()
    assert "bodies" not in state
    assert not {"steps", "large"} & state["slot"].keys()


def test_the_entry_outlives_failure_death_and_redrive(box: Box) -> None:
    id = box.one()
    lease = box.take_one()
    call(box, lease, DONE, data=b"\x017")
    place = member_of(id) + b"s"
    stored = box.state()["bodies"][place]

    box.reject(lease)
    assert box.state()["bodies"][place] == stored
    redrive = dead_letters_scripts.redrive(box.handle, box.keys, box.session(), [id])
    assert box.run(redrive) == "1"
    again = box.take_one()

    assert call(box, again, BEGUN, wants_entry=True) == StepReply(StepCode.DONE, stored)


def test_a_fresh_redrive_deletes_the_entry(box: Box) -> None:
    ids = [box.one(), box.one()]
    leases = [box.take_one(), box.take_one()]
    for lease in leases:
        call(box, lease, DONE)
        box.reject(lease)
    before = box.state()
    session = box.session()

    for _ in range(2):  # a call that arrives twice
        assert (
            box.run(
                dead_letters_scripts.redrive(box.handle, box.keys, session, ids[:1], fresh=True)
            )
            == "1"
        )

    changed = box.changed(before)
    assert changed[entry_of(ids[0])] is GONE
    assert entry_of(ids[1]) not in changed
    assert (changed[("slot", "steps")], changed[("slot", "large")]) == ("1", "1")


def test_get_returns_the_entry(box: Box) -> None:
    id = box.one()
    lease = box.take_one()
    assert box.run(topic_scripts.get(box.keys, id)).steps == b""
    call(box, lease, BEGUN)

    assert box.run(topic_scripts.get(box.keys, id)).steps == item(box, BEGUN, b"charge")


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("state", {"state": b"x"}),
        ("name", {"state": BEGUN, "name": b""}),
        ("name", {"state": CURSOR, "name": b"x"}),
        ("name", {"state": BEGUN, "name": bytes(256)}),
        ("most", {"state": BEGUN, "most": 2**20 + 1}),
    ],
)
def test_wrong_arguments_change_nothing(box: Box, field: str, given: dict[str, object]) -> None:
    box.one()
    lease = box.take_one()
    before = box.state()

    with pytest.raises(redis.ResponseError, match=f"RMQARG {field}"):
        call(box, lease, **given)  # type: ignore[arg-type]
    assert box.changed(before) == {}


def test_at_maxmemory_no_step_begins_and_what_is_done_is_stored(tight: Box) -> None:
    tight.one()
    lease = tight.take_one()
    call(tight, lease, BEGUN)
    tight.redis.config_set("maxmemory", 1)
    before = tight.state()

    with pytest.raises(redis.ResponseError, match=r"OOM|maxmemory"):
        call(tight, lease, BEGUN, b"more")

    assert tight.changed(before) == {}
    for state, name, data in (
        (DONE, b"charge", b"\x017"),
        (LOST, b"x", b""),
        (CURSOR, b"", b"\x018"),
    ):
        assert call(tight, lease, state, name, data) == EMPTY
    (entry,) = tight.changed(before).values()
    assert [(s.name, s.state) for s in decode_steps(entry)] == [
        ("charge", "done"), ("x", "lost"), ("", "cursor"),
    ]  # fmt: skip
