"""redrive_hold.lua on a real server."""

from __future__ import annotations

from typing import Any

import pytest

from rmq.features.dead_letters import scripts
from rmq.kernel.core.ids import member_of
from rmq.kernel.topic import scripts as topic_scripts
from tests.lua.box import Box
from tests.lua.moving import ANOTHER, TOKEN, bury, entry, hold, settle


def test_a_dead_letter_stays_where_it_is_and_says_where_it_goes(box: Box) -> None:
    (id,) = bury(box, body=b"b")
    died = int(box.score(id, "dead") or 0)
    before = box.state()

    reply = hold(box, id)

    assert (reply.codes, reply.now_ms) == ("1", box.clock.now_ms)
    ((token, slot, record),) = reply.held
    assert (token, slot, record[-1:]) == (TOKEN, 3, b"b")
    assert box.changed(before) == {
        ("slot", "holds"): "1",
        ("slot", ">" + member_of(id).hex()): b"token 01%d 3 other" % died,
    }


def test_who_comes_later_for_the_same_topic_gets_the_first_token_and_slot(box: Box) -> None:
    ids = bury(box, 2)
    hold(box, ids[0])

    reply = hold(box, *ids, token=ANOTHER, slot=5)

    assert [each[:2] for each in reply.held] == [(TOKEN, 3), (ANOTHER, 5)]
    assert box.counter("holds") == 2


def test_a_letter_that_is_held_goes_to_no_third_topic_nor_back_nor_into_the_trash(box: Box) -> None:
    held, free = bury(box, 2)
    hold(box, held)
    before = box.state()

    assert hold(box, held, to="third").codes == "m"
    assert box.run(scripts.redrive(box.handle, box.keys, box.session(), [held])) == "m"
    assert box.run(scripts.trash(box.keys, box.session(), [held], 1000)) == "m"

    assert box.changed(before) == {}
    assert box.run(scripts.redrive(box.handle, box.keys, box.session(), [free])) == "1"


def test_what_is_not_dead_or_died_later_or_has_no_record_is_not_held(box: Box) -> None:
    lost, late = bury(box, 2)
    waiting = box.one()
    box.redis.hdel(box.keys.records, member_of(lost))
    by = int(box.score(late, "dead") or 0) - 1
    before = box.state()

    assert hold(box, lost, waiting, box.ids()[0]).codes == "x00"
    command = scripts.redrive_hold(box.keys, TOKEN, "other", [late], [0], by)
    assert box.run(command).codes == "0"
    assert box.changed(before) == {}


def test_a_hold_of_an_earlier_death_holds_nothing(box: Box) -> None:
    (id,) = bury(box)
    hold(box, id)
    box.redis.zincrby(box.keys.dead, 5, member_of(id))  # it died again

    reply = hold(box, id, token=ANOTHER, to="third")

    assert [each.token for each in reply.held] == [ANOTHER]
    assert settle(box, (entry(id), True)) == "0"
    assert settle(box, (entry(id, ANOTHER), True)) == "1"


@pytest.mark.parametrize("who", ["purge", "retention"])
def test_a_hold_goes_with_its_letter_whoever_deletes_it(make_box: Any, who: str) -> None:
    box = make_box(dead_retention_ms=60_000)
    deleted = bury(box, 3)
    hold(box, *deleted[:2])
    box.clock.advance(50)
    (kept,) = bury(box)
    hold(box, kept)
    box.clock.advance(10)
    assert box.counter("holds") == 3

    if who == "purge":
        box.run(topic_scripts.purge(box.handle, box.keys, box.session(), "dead", ids=deleted))
    else:
        assert box.run(topic_scripts.tidy(box.keys)).dropped == 3

    held = {name for name in box.state()["slot"] if name.startswith(">")}
    assert held == {">" + member_of(kept).hex()}
    assert box.counter("holds") == 1


def test_a_full_reply_is_shorter(box: Box) -> None:
    ids = bury(box, 3, body=b"b" * 2_500_000)

    assert hold(box, *ids).codes == "1"
