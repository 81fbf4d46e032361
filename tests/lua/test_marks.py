"""Every script that stores messages notes that a message keeps its result."""

from __future__ import annotations

import msgpack
import pytest
import redis

from rmq.features.schedules import scripts as schedules_scripts
from rmq.features.spark import scripts as spark_scripts
from rmq.kernel.core import record, sequence
from rmq.kernel.core.ids import member_of
from rmq.kernel.producer import scripts as producer_scripts
from tests.lua import calls
from tests.lua.box import Box, stored
from tests.lua.crediting import break_script
from tests.lua.following import ack_then, entry, follow_up, own, pending_send
from tests.lua.numbers import P


def send_one(box: Box, keep: int | None) -> None:
    box.one(keep=keep)


def send_uniform(box: Box, keep: int | None) -> None:
    box.send(3, keep=keep)


def send_several(box: Box, keep: int | None) -> None:
    """Messages whose heads differ: one with a time, one with the mark."""
    given = box.ids(2)
    parts = [*box.part(due=500), *box.part(keep=keep)]
    box.run(producer_scripts.send(box.handle, box.keys, box.session(), given, parts))


def send_timed(box: Box, keep: int | None) -> None:
    box.one(due=500, expires=900, keep=keep)


def send_in_group(box: Box, keep: int | None) -> None:
    box.redis.hset(box.keys.slot, "groups", "1:1:0")
    box.one(keep=keep)


def merge(box: Box, keep: int | None) -> None:
    box.merge(keep=keep)


def publish(box: Box, keep: int | None) -> None:
    part, stage = [member_of(box.ids()[0]), *box.part(keep=keep)], f"stage{keep}"
    box.run(spark_scripts.stage_push(box.keys, stage, 0, 60_000, part))
    box.run(spark_scripts.publish(box.handle, box.keys, box.session(), stage))


def send_pending(box: Box, keep: int | None) -> None:
    pending_send(box, entry(box, box.clock.now_us + (keep or 0), keep=keep))


def store_with_ack(box: Box, keep: int | None) -> None:
    box.one(priority=900)
    ack_then(box, [box.take_one()], follow_up(box, target=own(box), keep=keep))


def arrive(box: Box, keep: int | None) -> None:
    box.run(calls.arrive(box, keep=keep))


def schedule(box: Box, keep: int | None) -> None:
    now = box.clock.now_ms
    box.run(schedules_scripts.schedule_set(box.keys, "s", b"d", "t", now - 9, now - 2, 100, b"0"))
    box.run(
        schedules_scripts.schedule_send(
            box.handle, box.keys, ("s", b"1", b"%d" % (now - 9)), (now + 9000, now + 9000), now - 9,
            (box.ids()[0], *box.part(keep=keep)),
        )
    )  # fmt: skip


WAYS = [
    send_one, send_uniform, send_several, send_timed, send_in_group, merge, publish, send_pending,
    store_with_ack, arrive, schedule,
]  # fmt: skip


@pytest.mark.parametrize("store", WAYS)
def test_the_slot_notes_a_message_with_the_mark_and_no_other(box: Box, store) -> None:
    store(box, None)
    assert "outcomes" not in box.state()["slot"]

    if store is schedule:
        box.redis.delete(box.keys.schedules, box.keys.schedule_times)
    store(box, 60)

    assert box.state()["slot"]["outcomes"] == "1"


@pytest.mark.parametrize("store", WAYS)
def test_a_script_that_does_not_note_it_is_noticed(box: Box, monkeypatch, store) -> None:
    scripts = {
        "merge": "merge", "publish": "publish", "send_pending": "pending_send",
        "store_with_ack": "ack_then", "arrive": "redrive_send", "schedule": "schedule_send",
    }  # fmt: skip
    break_script(
        monkeypatch, scripts.get(store.__name__, "send"), "'HSET', slot, 'outcomes'", "'HGET', slot"
    )

    store(box, 60)

    assert "outcomes" not in box.state()["slot"]


def with_headers(box: Box, packed: bytes, body: bytes = b"body") -> bytes:
    """Send a message with these headers."""
    whole = stored(0, b"", priority=100)
    head = bytes((whole[0] | record.HEADERS,)) + whole[1:4]
    id = box.ids()[0]
    rest = whole[8:] + record.length_prefixed(packed) + body
    box.run(producer_scripts.send(box.handle, box.keys, box.session(), [id], [head, rest]))
    return id


MARK = msgpack.packb("rmq-keep") + msgpack.packb("60")
MANY = b"\xde\x00\x10" + MARK + b"".join(msgpack.packb(str(n)) * 2 for n in range(15))


@pytest.mark.parametrize(
    ("packed", "keeps"),
    [
        (b"\x81" + MARK, True),
        (MANY, True),
        (sequence.headers(P, 7, b"\x81" + MARK), True),
        (sequence.headers(P, 12345, b"\x82" + MARK + b"\xa1a\xa1b"), True),
        (b"\x82\xa1a\xa1b" + MARK, False),  # a header of the sender comes first
        (b"\x81\xa8rmq-keep\xa0", False),
        (b"\x81\xa8rmq-keep\xa3six", False),
        (b"\x81\xa8rmq-keep\xa21.", False),
        (b"\x81\xa8rmq-keep\xaa1234567890", False),
        (b"\x81\xa8rmq-kept\xa260", False),
        (b"\x80", False),
        (b"", False),
    ],
)
def test_the_mark_is_the_first_header_or_follows_the_audit_number(box, packed, keeps) -> None:
    with_headers(box, packed, body=MARK)

    assert ("outcomes" in box.state()["slot"]) == keeps


@pytest.mark.parametrize("size", range(len(b"\x81" + MARK)))
def test_a_record_that_is_cut_short_has_no_mark(box: Box, size: int) -> None:
    box.one(keep=60)
    lease = box.take_one()
    box.break_record(lease.id, lease.record[: 8 + 2 + size])

    assert ack_then(box, [lease]).codes == "1"

    assert "results" not in box.state()


def merge_with(box: Box, packed: bytes | None, mode: str = "first", body: bytes = b"b") -> str:
    """Merge a message with these headers; the letter of the reply."""
    whole = stored(0, b"", due=5000, key=b"key", collects=mode == "collect")
    head, envelope = whole[:4], whole[8:]
    if packed is not None:
        head, envelope = record.with_headers(head, envelope, packed)
    given = [head + b"%b 0 4000 " % mode.encode(), envelope, body]
    call = producer_scripts.merge(box.handle, box.keys, box.session(), box.ids(), given)
    letter: str = box.run(call).codes
    return letter


AUDIT = msgpack.packb("rmq-audit") + msgpack.packb(f"{P}.7")
MAP_15 = b"\x8f" + b"".join(msgpack.packb(str(n)) * 2 for n in range(15))


@pytest.mark.parametrize("mode", ["first", "last", "collect"])
@pytest.mark.parametrize("later", [b"\x81" + MARK, b"\x82" + AUDIT + MARK])
@pytest.mark.parametrize(
    "before", [None, b"\x80", b"\x81\xa1a\xa1b", b"\x81" + AUDIT, b"\x82" + AUDIT + b"\xa1a\xa1b",
               MAP_15, MANY.replace(MARK, b"\xa1a\xa1b")],
)  # fmt: skip
def test_a_window_gets_the_mark_of_the_first_message_that_has_one(box, before, later, mode) -> None:
    assert merge_with(box, before, mode, b"one") == "s"
    (id,) = box.order()
    bare = record.read(box.state()["records"][id])
    assert "outcomes" not in box.state()["slot"]

    assert merge_with(box, later, mode, b"two") == "m"

    kept = record.read(box.state()["records"][id])
    assert box.state()["slot"]["outcomes"] == "1"
    assert kept.headers == bare.headers | {"rmq-keep": "60"}
    names = list(kept.headers)
    assert names.index("rmq-keep") == ("rmq-audit" in names)
    assert (kept.due_ms, kept.merge_key, kept.offset_low) == (bare.due_ms, "key", 1)
    assert record.bodies_of(kept) == {
        "first": [b"one"], "last": [b"two"], "collect": [b"one", b"two"],
    }[mode]  # fmt: skip

    marked = box.state()["records"][id]
    assert merge_with(box, (b"\x81" + MARK).replace(b"60", b"99"), "first") == "m"
    assert box.state()["records"][id] == marked, "the first mark stays"


def test_messages_of_one_call_merge_with_their_marks(box: Box) -> None:
    plain, marked = box.merge_command(box.ids()[0]), box.merge_command(box.ids()[0], keep=60)
    box.run(box.merge_many([plain, marked, plain]))

    (kept,) = box.state()["records"].values()
    assert record.headers_of(kept) == {"rmq-keep": "60"}
    assert box.state()["slot"]["outcomes"] == "1"


def test_an_ack_of_a_slot_that_keeps_results_is_refused_before_it_writes(box: Box) -> None:
    box.one()
    box.one(keep=60)
    leases = box.take(2)
    before = box.state()

    for part in (leases, leases[:1], leases[1:]):
        session = box.session()
        with pytest.raises(redis.ResponseError, match=f"RMQRESULTS {box.keys.slot.decode()}"):
            box.run(box.ack_command(part, session))
        assert box.changed(before, replay=True) == {}

    # The same call of the session, as the client makes it then.
    assert ack_then(box, leases[1:], session=session).codes == "1"


def test_an_ack_that_is_repeated_in_a_slot_that_now_keeps_results_gets_its_answer(box) -> None:
    box.one()
    command = box.ack_command([box.take_one()], box.session())
    assert box.run(command) == "1"
    box.one(keep=60)

    assert box.run(command) == "1"


def test_messages_of_one_call_may_be_kept_for_different_times(box: Box) -> None:
    """Also if the starts of their headers are equal, as those of audited messages are."""
    keeps = (60, 60, 61, None, 60, 7)
    ids = [box.one(keep=keep, priority=900 - n) for n, keep in enumerate(keeps)]
    kept = {id: keep for id, keep in zip(ids, keeps, strict=True) if keep}
    for number, keep in ((1234567890123, 8), (1234567890124, None), (1234567890125, 9)):
        mark = b"\x81" + msgpack.packb("rmq-keep") + msgpack.packb(str(keep))
        id = with_headers(box, sequence.headers(P, number, mark if keep else b"\x81\xa1a\xa1b"))
        ids.append(id)
        if keep:
            kept[id] = keep

    assert ack_then(box, box.take(10)).codes == "1" * len(ids)

    now = box.clock.now_ms
    assert box.state()["keeping"] == {id: now + keep * 1000 for id, keep in kept.items()}
