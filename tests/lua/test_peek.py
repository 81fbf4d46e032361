"""peek.lua on a real server."""

from __future__ import annotations

from rmq.kernel.core.ids import member_of
from rmq.kernel.topic import scripts
from tests.lua.box import ordered, stored


def peek(box, queue="store", **options):
    """Run peek twice, and return its reply; check that no key changes."""
    before = box.state()
    found = box.twice(lambda: scripts.peek(box.keys, queue, **options))
    assert box.state() == before
    return found


def test_page_of_the_store_shows_everything_about_a_message(box):
    a, b = box.send(2, priority=50, body=b"hi")

    assert peek(box, down=True) == [
        scripts.QueueMember("store", a, ordered(50, 1), stored(1, b"hi", priority=50), b"", 2),
        scripts.QueueMember("store", b, ordered(50, 2), stored(2, b"hi", priority=50), b"", 2),
    ]
    assert [found.id for found in peek(box)] == [b, a]


def test_pages_follow_each_other_to_the_end(box):
    given = box.send(7, due=5000)
    pages = [peek(box, offset=offset, limit=3) for offset in (0, 3, 6, 9)]

    assert [len(page) for page in pages] == [3, 3, 1, 0]
    assert [found.id for page in pages for found in page] == sorted(given)


def test_range_of_scores_is_honoured(box):
    low, middle, high = (box.one(priority=p) for p in (20, 30, 40))

    assert [found.id for found in peek(box, low="30", high="(40")] == [middle]
    assert [found.id for found in peek(box, low="(31", down=True)] == [high]
    assert [found.id for found in peek(box, high="29")] == [low]


def test_leases_and_dead_letters_are_shown(box):
    box.send(2)
    flying, dead = box.take(2)
    box.reject(dead)
    died, entry = box.clock.now_ms, box.failure(0, 1, "r", b"why")

    assert peek(box, "prepare") == [
        scripts.QueueMember("prepare", flying.id, flying.receipt, flying.record, b"", 2)
    ]
    assert peek(box, "dead") == [scripts.QueueMember("dead", dead.id, died, dead.record, entry, 2)]


def test_empty_queue_is_an_empty_page(box):
    assert peek(box) == peek(box, "prepare") == peek(box, "dead") == []


def test_message_without_a_record_is_shown_without_one(box):
    id = box.one()
    box.redis.hdel(box.keys.records, member_of(id))

    assert [(found.id, found.record) for found in peek(box)] == [(id, b"")]


def test_a_page_has_what_single_messages_have_of_failures_and_lost_records(box):
    ids = box.send(200)
    for at in (0, 17, 150, 199):
        box.redis.hset(box.keys.failures, member_of(ids[at]), box.failure(16, 1, "f", b"%d" % at))
    for at in (16, 17, 198):
        box.redis.hdel(box.keys.records, member_of(ids[at]))

    found = peek(box, limit=1000, down=True)

    assert found == [peek(box, limit=1, down=True, offset=at)[0] for at in range(200)]
    assert [at for at in range(200) if found[at].failure] == [0, 17, 150, 199]
    assert [at for at in range(200) if not found[at].record] == [16, 17, 198]


def test_records_are_left_out_where_the_caller_needs_none(box):
    ids = box.send(200)
    box.redis.hset(box.keys.failures, member_of(ids[150]), box.failure(16, 1, "f", b"why"))

    found, whole = (peek(box, limit=1000, records=records) for records in (False, True))

    assert found == [each._replace(record=b"") for each in whole] != whole


def test_deliveries_of_a_shared_lease_are_shown_with_its_end(box):
    box.send(3)
    began = box.clock.now_ms
    (shared,) = box.leases(box.prepare(1, 30_000, shared=0))
    (own,) = box.take(1)

    ends = {found.id: found.lease_end_ms for found in peek(box, "prepare")}

    assert ends == {shared.id: began + 30_000, own.id: None}
    assert [found.lease_end_ms for found in peek(box)] == [None]


def test_page_is_bounded_by_bytes(make_box):
    box = make_box(max_body=2 * 1024 * 1024)
    for _ in range(4):
        box.one(body=b"b" * (2 * 1024 * 1024 - 100))

    assert len(peek(box, limit=1000)) == 2
    assert len(peek(box, limit=1000, offset=2)) == 2
    assert peek(box, limit=1000, offset=4) == []


def test_a_page_has_a_thousand_small_messages_whatever_size_the_topic_allows(make_box):
    box = make_box(max_body=16 * 1024 * 1024)
    given = box.send(1000)

    assert [found.id for found in peek(box, limit=1000, down=True)] == given


def test_failures_count_among_the_bytes_of_a_page(box):
    ids = box.send(3)
    for id in ids:
        entry = box.failure(16, 1, "f", b"t" * 2_500_000)
        box.redis.hset(box.keys.failures, member_of(id), entry)

    assert [len(peek(box, limit=1000, offset=at)) for at in range(4)] == [1, 1, 1, 0]


def test_short_pages_still_follow_each_other_to_the_end(box):
    given = box.send(1000)
    found: list[bytes] = []
    while page := peek(box, limit=1000, down=True, offset=len(found)):
        found += [one.id for one in page]

    assert found == given
