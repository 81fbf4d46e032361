"""batch_end.lua and batch_close.lua on a real server: when the callback is stored."""

from __future__ import annotations

import pytest
import redis

from rmq.kernel.batches.scripts import OUTCOMES
from tests.lua.batching import (
    NAME,
    TARGET,
    add,
    called,
    close,
    end,
    fields,
    ids,
    open_batch,
    pending,
)
from tests.lua.box import Box


def test_the_last_end_of_a_closed_batch_stores_the_callback(box: Box) -> None:
    open_batch(box)
    given = ids(8)
    add(box, given)
    pairs = list(zip(given, OUTCOMES, strict=True))
    assert end(box, *pairs[:7]) == ("o", 1)
    assert close(box) == ("o", "c", 1)
    assert pending(box) == []

    assert end(box, pairs[7]) == ("d", 0)

    assert pending(box) == [called(*([1] * 8))]
    assert box.redis.zrange(box.keys.targets, 0, -1) == [TARGET.encode()]
    found = fields(box)
    assert (found["#state"], found["#ended"]) == ("d", str(box.clock.now_ms))
    assert 0 < box.redis.pttl(box.keys.batch(NAME)) <= 60_000


def test_closing_an_empty_batch_stores_the_callback_at_once(box: Box) -> None:
    open_batch(box)

    assert close(box) == ("o", "d", 0)
    assert pending(box) == [called()]


def test_repeated_calls_change_nothing(box: Box) -> None:
    open_batch(box)
    a, b = ids(2)
    add(box, [a, b])
    end(box, (a, "s"))
    before = box.state()
    assert end(box, (a, "s"), (a, "c")) == ("o", 1)
    assert box.changed(before) == {}
    close(box)
    end(box, (b, "d"))
    after = box.state()

    assert close(box) == ("d", "d", 0)
    assert close(box, cancelled=True) == ("d", "d", 0)
    assert end(box, (a, "s"), (b, "s")) == ("d", 0)
    assert box.changed(after) == {}
    assert pending(box) == [called(1, 0, 1)]


def test_an_id_that_is_given_twice_counts_once(box: Box) -> None:
    open_batch(box)
    (a,) = ids(1)
    add(box, [a])

    assert end(box, (a, "s"), (a, "d")) == ("o", 0)
    assert (fields(box)["#s"], fields(box).get("#d")) == ("1", None)


def test_a_batch_may_wait_for_dead_letters(box: Box) -> None:
    open_batch(box, "wait")
    a, b = ids(2)
    add(box, [a, b])
    close(box)

    assert end(box, (a, "d"), (b, "s")) == ("c", 1)
    assert fields(box)[str(a)] == "!1"
    assert end(box, (a, "d")) == ("c", 1)
    assert end(box, (a, "s")) == ("d", 0)
    assert pending(box) == [called(2)]


def test_a_message_from_outside_is_no_member(box: Box) -> None:
    open_batch(box)
    a, b = ids(2)
    add(box, [a, b])

    assert end(box, (a, "x")) == ("o", 1)
    found = fields(box)
    assert (str(a) in found, found["#all"], found["#open"]) == (False, "1", "1")
    assert end(box, (a, "s")) == ("o", 1)


def test_a_dead_letter_for_which_the_batch_waits_is_a_member(box: Box) -> None:
    open_batch(box, dead="wait")
    (a,) = ids(1)
    add(box, [a])
    end(box, (a, "d"))
    before = box.state()

    assert end(box, (a, "x")) == ("o", 1)
    assert box.changed(before) == {}


def test_members_end_only_if_the_batch_has_not_changed(box: Box) -> None:
    open_batch(box)
    a, b = ids(2)
    add(box, [a, b])
    touched_ms = int(fields(box)["#touched"])
    box.clock.advance(60)

    before = box.state()
    assert end(box, (a, "l"), touched_ms=touched_ms - 1) == ("o", 2)
    assert box.changed(before) == {}
    assert end(box, (a, "l"), touched_ms=touched_ms) == ("o", 1)
    assert fields(box)["#touched"] == str(touched_ms)

    add(box, [b])  # a program that starts again sends it next
    before = box.state()
    assert end(box, (b, "l"), touched_ms=touched_ms) == ("o", 1)
    assert box.changed(before) == {}


def test_a_cancelled_batch_says_so_in_its_callback(box: Box) -> None:
    open_batch(box)
    (a,) = ids(1)
    add(box, [a])

    assert close(box, cancelled=True) == ("o", "c", 1)
    assert close(box, cancelled=True) == ("c", "c", 1)
    assert end(box, (a, "c")) == ("d", 0)
    assert pending(box) == [called(0, 0, 0, 1, cancelled=True)]


def test_a_closed_batch_can_still_be_cancelled(box: Box) -> None:
    open_batch(box)
    add(box, ids(1))
    close(box)

    assert close(box, cancelled=True) == ("c", "c", 1)
    assert fields(box)["#cancelled"] == "1"


def test_a_batch_that_does_not_exist_is_told(box: Box) -> None:
    before = box.state()

    assert close(box) == ("", "", 0)
    assert end(box, (ids()[0], "s")) == ("", 0)
    assert box.changed(before) == {}


@pytest.mark.parametrize(
    ("field", "args"),
    [("letter", ["x" * 26, "q"]), ("id", ["x", "s"]), ("members", []), ("members", ["x" * 26])],
)
def test_wrong_arguments_change_nothing(box: Box, field: str, args: list[str]) -> None:
    open_batch(box)
    keys = (box.keys.slot, box.keys.batch(NAME), box.keys.pending, box.keys.targets)
    before = box.state()

    with pytest.raises(redis.ResponseError, match=f"RMQARG {field}"):
        box.raw("batch_end", keys, ["", "", *args])
    assert box.changed(before) == {}


def test_ends_and_the_callback_are_stored_at_maxmemory(tight: Box) -> None:
    open_batch(tight)
    (a,) = ids(1)
    add(tight, [a])
    tight.redis.config_set("maxmemory", 1)

    assert close(tight) == ("o", "c", 1)
    assert end(tight, (a, "s")) == ("d", 0)
    assert pending(tight) == [called(1)]
