"""publish.lua on a real server."""

from __future__ import annotations

import msgpack
import pytest
import redis

from rmq.features.spark import scripts
from rmq.features.spark.scripts import PublishReply
from rmq.kernel.core import record
from rmq.kernel.core.ids import member_of, members_of
from tests.lua.box import Box, merging, ordered, stored, timed

NAME = "q:7:a"
PLACE = f"stage:{NAME}"
DAY_MS = 86_400_000


def push(box: Box, *entries: list[bytes], name: str = NAME) -> None:
    for place, entry in enumerate(entries):
        command = scripts.stage_push(box.keys, name, place, DAY_MS, entry)
        assert box.run(command) == place + 1


def plain(box: Box, count: int = 1, **options) -> tuple[list[bytes], list[bytes]]:
    """(ids, an entry of so many messages that are alike)."""
    given = box.ids(count)
    return given, [*members_of(given), *box.part(**options) * count]


def publish(box: Box, name: str = NAME):
    return box.run(scripts.publish(box.handle, box.keys, box.session(), name))


def test_publish_moves_one_entry_as_a_send_would_and_takes_it_out_of_the_stage(box):
    (one,), first = plain(box, priority=900, body=b"hello")
    _, second = plain(box)
    push(box, first, second)
    before = box.state()

    assert publish(box) == PublishReply(1, 1, 0, 0)

    assert box.changed(before) == {
        ("slot", "accepted"): "1",
        ("slot", "order"): "1",
        ("store", one): ordered(900, 1),
        ("records", one): stored(1, b"hello", priority=900),
        (PLACE,): [msgpack.packb(second, use_bin_type=False)],
    }


def test_publish_twice_goes_on_and_at_the_end_there_is_nothing_more(box):
    (one,), first = plain(box)
    (two,), second = plain(box)
    push(box, first, second)

    assert [publish(box), publish(box)] == [PublishReply(1, 1, 0, 0), PublishReply(0, 1, 0, 0)]
    after = box.state()
    assert box.twice(
        lambda: scripts.publish(box.handle, box.keys, box.session(), NAME)
    ) == PublishReply(0, 0, 0, 0)

    assert after[PLACE] == [b""]
    assert box.state() == after
    assert box.drained() == [one, two]


def test_what_is_published_looks_as_what_is_sent(box):
    now = box.clock.now_ms
    variants = [
        {"priority": 17},
        {"due": now + 60_000},
        {"due": 1500, "priority": 20},
        {"expires": 500},
        {"due": 1000, "expires": 500},
    ]
    sent = [box.one(**one) for one in variants]
    staged = []
    for one in variants:
        (id,), entry = plain(box, **one)
        push(box, entry, name=f"s{len(staged)}")
        staged.append(id)
    for place in range(len(staged)):
        assert publish(box, f"s{place}") == PublishReply(0, 1, 0, 0)

    records = box.state()["records"]
    for a, b in zip(sent, staged, strict=True):
        assert records[a][:4] == records[b][:4]
        assert records[a][8:] == records[b][8:]
        assert int(box.score(a)) == int(box.score(b))


def test_ids_that_live_or_were_settled_within_the_window_add_nothing(box):
    settled = box.one(kept=True)
    assert box.ack(box.take_one()) == "1"
    (living,) = box.send()
    (new,) = box.ids()
    push(box, [*members_of([settled, living, new]), *box.part() * 3])
    before = box.state()

    assert publish(box) == PublishReply(0, 1, 2, 0)

    assert box.changed(before) == {
        ("slot", "accepted"): "3",
        ("slot", "order"): "3",
        ("store", new): box.score(new),
        ("records", new): stored(3, priority=100),
        (PLACE,): [b""],
    }


def test_a_time_that_has_passed_since_is_due_at_once(box):
    due = box.clock.now_ms + 1000
    (id,), entry = plain(box, due=due)
    push(box, entry)
    box.clock.advance(3600)

    assert publish(box) == PublishReply(0, 1, 0, 0)

    assert box.score(id) == timed(due, False)
    assert box.take_one().id == id


def test_a_delay_counts_from_publishing(box):
    (id,), entry = plain(box, due=5000)
    push(box, entry)
    box.clock.advance(3600)

    publish(box)

    assert box.score(id) == timed(box.clock.now_ms + 5000, False)


def test_a_thousand_messages_are_one_entry(box):
    given, entry = plain(box, 1000)
    push(box, entry)

    assert publish(box) == PublishReply(0, 1000, 0, 0)
    assert [lease.id for lease in box.take(1000)] == given


def test_a_full_slot_refuses_an_entry_and_it_stays(make_box):
    box = make_box(max_length=2)
    box.send()
    push(box, plain(box)[1], plain(box)[1])
    assert publish(box) == PublishReply(1, 1, 0, 0)
    before = box.state()

    assert box.twice(lambda: scripts.publish(box.handle, box.keys, box.session(), NAME)) is None

    assert box.state() == before
    assert box.ack(box.take_one()) == "1"
    assert publish(box) == PublishReply(0, 1, 0, 0)


def test_drop_lowest_drops_for_a_staged_message_as_for_a_sent_one(make_box):
    box = make_box(max_length=1, overflow="drop_lowest")
    low = box.one(priority=20)
    (high,), entry = plain(box, priority=900)
    push(box, entry)

    assert publish(box) == PublishReply(0, 1, 0, 0)

    assert box.order() == [high]
    assert low not in box.state()["records"]
    assert box.counter("dropped") == 1


# --- merging -----------------------------------------------------------------------------------


def test_merging_entry_opens_a_window_as_merge_does(box):
    (id,) = box.ids()
    push(box, merging(id, b"hello"))
    before = box.state()

    assert publish(box) == PublishReply(0, 1, 0, 0)

    due = box.clock.now_ms + 5000
    assert box.changed(before) == {
        ("slot", "accepted"): "1",
        ("store", id): timed(due, False),
        ("records", id): stored(1, b"hello", due=due, key=b"key"),
        ("merge", b"key"): id + b"%d" % box.clock.now_ms,
        (PLACE,): [b""],
    }


@pytest.mark.parametrize("window", [0, 60_000])
def test_each_merging_message_is_collected_once_whatever_the_dedup_window(make_box, window):
    box = make_box(dedup_window_ms=window)
    given = box.ids(3)
    push(box, *(merging(id, b"%d" % n, b"collect") for n, id in enumerate(given)))

    replies = [publish(box) for _ in range(5)]

    assert replies == [
        PublishReply(2, 1, 0, 0), PublishReply(1, 0, 0, 1), PublishReply(0, 0, 0, 1),
        PublishReply(0, 0, 0, 0), PublishReply(0, 0, 0, 0),
    ]  # fmt: skip
    (kept,) = box.state()["records"].values()
    assert record.collected_bodies(record.read(kept).body) == [b"0", b"1", b"2"]
    assert box.counter("merged") == 2


def test_merging_and_plain_entries_keep_their_order(box):
    (one,), first = plain(box)
    (two,) = box.ids()
    (three,), last = plain(box)
    push(box, first, merging(two), last)

    assert [publish(box) for _ in range(3)] == [
        PublishReply(2, 1, 0, 0), PublishReply(1, 1, 0, 0), PublishReply(0, 1, 0, 0),
    ]  # fmt: skip
    assert box.drained() == [one, three]
    assert box.order() == [two]


def test_full_slot_refuses_a_merging_entry_and_it_stays(make_box):
    box = make_box(max_length=1)
    box.one()
    push(box, merging(box.ids()[0]))
    before = box.state()

    assert publish(box) is None
    assert box.state() == before


# --- what is refused ---------------------------------------------------------------------------


def test_missing_stage_is_an_error_that_names_it(box):
    before = box.state()

    with pytest.raises(redis.ResponseError, match=r"RMQSTAGE rmq:.*:stage:q:7:a"):
        publish(box)

    assert box.state() == before


@pytest.mark.parametrize(
    "entry",
    [[], [b"one"], [b"m", b"short"], [b"i" * 16, b"head"], [b"i" * 15, b"head", b"rest"]],
)
def test_entry_that_nobody_wrote_so_moves_nothing(box, entry):
    push(box, entry)
    before = box.state()

    with pytest.raises(redis.ResponseError, match=r"RMQ(STAGE|ARG)"):
        publish(box)

    assert box.state() == before


def test_bytes_that_are_no_entry_move_nothing(box):
    box.redis.rpush(box.keys.stage_stem + NAME.encode(), b"\xc1 not msgpack")
    before = box.state()

    with pytest.raises(redis.ResponseError):
        publish(box)

    assert box.state() == before


def test_merging_entry_is_stored_if_the_waiting_record_is_missing(box):
    window, _ = box.merge()
    box.break_record(window, None)
    (id,) = box.ids()
    push(box, merging(id))

    publish(box)

    assert box.state()["merge"][b"key"].startswith(id)


# --- maxmemory ---------------------------------------------------------------------------------


def test_at_maxmemory_an_entry_stays_in_its_stage(tight):
    for name, entry in (("p", plain(tight, 3)[1]), ("m", merging(tight.ids()[0]))):
        push(tight, entry, name=name)
    publish_first = [
        scripts.publish(tight.handle, tight.keys, tight.session(), name) for name in ("p", "m")
    ]
    tight.redis.script_load(publish_first[0].script.text)
    tight.redis.config_set("maxmemory", 1)
    before = tight.state()

    for command in publish_first:
        with pytest.raises(redis.ResponseError, match=r"OOM|maxmemory"):
            tight.run(command)
        assert tight.state() == before

    tight.redis.config_set("maxmemory", 0)
    assert [tight.run(command) for command in publish_first] == [
        PublishReply(0, 3, 0, 0), PublishReply(0, 1, 0, 0),
    ]  # fmt: skip


def test_at_maxmemory_what_adds_nothing_is_taken_off_the_stage(tight):
    entry = [member_of(tight.one()), *tight.part()]
    for name in ("one", "two"):
        push(tight, entry, name=name)
    push(tight, entry, entry, name="more")
    command = scripts.publish(tight.handle, tight.keys, tight.session(), "one")
    assert tight.run(command) == PublishReply(0, 0, 1, 0)
    tight.redis.config_set("maxmemory", 1)

    assert publish(tight, "two") == PublishReply(0, 0, 1, 0)
    assert publish(tight, "more") == PublishReply(1, 0, 1, 0)
    assert publish(tight, "more") == PublishReply(0, 0, 1, 0)
    assert publish(tight, "more") == PublishReply(0, 0, 0, 0)
    assert tight.state()["stage:two"] == [b""]


def test_at_maxmemory_nothing_is_staged_and_stages_are_dropped(tight):
    push(tight, plain(tight)[1])
    more = scripts.stage_push(tight.keys, NAME, 1, DAY_MS, plain(tight)[1])
    keep = scripts.stage_keep(tight.keys, NAME, DAY_MS, 1)
    drop = scripts.stage_keep(tight.keys, NAME, 0)
    begin = scripts.sink_begin(tight.handle, "q", 7, b"[]")
    for script in (more, keep, begin):
        tight.redis.script_load(script.script.text)
    tight.run(scripts.sink_begin(tight.handle, "open", 7, b"[]"))
    end = scripts.sink_end(tight.handle, "open", 7)
    tight.redis.script_load(end.script.text)
    tight.redis.config_set("maxmemory", 1)

    for command in (more, begin):
        with pytest.raises(redis.ResponseError, match=r"OOM|maxmemory"):
            tight.run(command)
    assert tight.run(keep) == 1
    assert tight.run(drop) == 1
    assert tight.run(end) is True
    assert PLACE not in tight.state()
