"""groups.lua on a real server: what is read of groups."""

from __future__ import annotations

from rmq.features.groups import scripts
from rmq.kernel.core.groups import Groups
from rmq.kernel.core.ids import MessageId
from tests.lua.group import ahead, pause, send_in, states


def test_state_has_what_is_out_and_held_and_nothing_changes(make_box):
    box = make_box(groups=Groups())
    first, second, *_ = send_in(box, "g", 4)
    before = box.state()

    (state,) = box.run(scripts.groups(box.keys)).groups

    assert box.changed(before) == {}
    assert state == scripts.GroupState(
        "g", 0, 3, 1, MessageId(second).made_at, False, False, 1, None, first, None, False
    )
    assert state.waits_for == f"{MessageId(first)}, which may be taken"


def test_share_weight_and_priorities_are_read(make_box):
    box = make_box(groups=Groups())
    head = send_in(box, "g", 1, share_key="tenant", weight=4)
    low = send_in(box, "g", 2, priority=50, share_key="tenant", weight=4)
    send_in(box, "g", 1, share_key="tenant", weight=4)

    state = states(box)["g"]

    assert (state.held, state.out, state.weight, state.share_key) == (3, 1, 4, "tenant")
    assert (state.message, state.oldest) == (head[0], MessageId(low[0]).made_at)


def test_ahead_counts_those_of_larger_priorities_and_those_sent_before(make_box):
    box = make_box(groups=Groups())
    head = send_in(box, "g", 1)
    low = send_in(box, "g", 3, priority=50)
    high = send_in(box, "g", 2)

    assert [ahead(box, id, "g") for id in head + high + low] == [None, 0, 1, 2, 3, 4]


def test_all_priorities_are_counted_however_many(make_box):
    box = make_box(groups=Groups())
    sent = [send_in(box, "g", 1, priority=500 - n)[0] for n in range(40)]

    assert states(box)["g"].held == 39
    assert [ahead(box, id, "g") for id in sent] == [None, *range(39)]
    (ranges,) = box.run(scripts.groups(box.keys)).ranges
    assert [box.redis.zcount(box.keys.store, *each) for each in ranges] == [39]


def test_a_million_would_be_read_in_pages_each_once_at_least(make_box):
    box = make_box(groups=Groups())
    names = {f"g{n}" for n in range(1000)}
    for name in names:
        send_in(box, name)
    found, cursor, pages = set[str](), b"0", 0
    while True:
        page = box.run(scripts.groups(box.keys, cursor))
        assert page.is_first == (pages == 0)
        assert len(page.groups) < 1000
        found |= {state.group for state in page.groups}
        cursor, pages = page.cursor, pages + 1
        if cursor == b"0":
            break

    assert found == names
    assert pages > 3


def test_cursor_of_another_server_begins_anew(make_box):
    box = make_box(groups=Groups())
    send_in(box, "g")

    page = box.run(scripts.groups(box.keys, b"7.0123456789abcdef"))

    assert page.is_first
    assert [state.group for state in page.groups] == ["g"]


def test_group_by_its_name_or_nothing(make_box):
    box = make_box(groups=Groups())
    send_in(box, "g")
    pause(box, "p")

    read = {name: box.run(scripts.groups(box.keys, name=name)).groups for name in "gpx"}

    assert [len(groups) for groups in read.values()] == [1, 1, 0]
    assert read["p"][0].paused


def test_messages_without_a_group_are_the_one_without_a_name(make_box):
    box = make_box(groups=Groups())
    box.send(3)

    assert (states(box)[""].out, states(box)[""].held) == (3, 0)


def test_slot_without_groups_has_none(box):
    box.send(3)

    assert box.run(scripts.groups(box.keys)).groups == []
