"""batch_add.lua on a real server."""

from __future__ import annotations

import pytest
import redis

from rmq.kernel.batches import scripts
from tests.lua.batching import NAME, add, close, end, fields, ids, open_batch
from tests.lua.box import Box


def test_messages_become_members(box: Box) -> None:
    open_batch(box)
    a, b, c = ids(3)
    box.clock.advance(1)

    assert add(box, [a, b]) == ("o", "nn")
    assert add(box, [b, c], topic="mails") == ("o", ".n")

    found = fields(box)
    assert {name: found[name] for name in map(str, (a, b, c))} == {
        str(a): ".1", str(b): ".1", str(c): ".2",
    }  # fmt: skip
    assert (found["#open"], found["#all"], found["#topics"]) == ("3", "3", "rows mails")
    assert found["#touched"] == str(box.clock.now_ms)


def test_the_same_call_again_changes_nothing(box: Box) -> None:
    open_batch(box)
    given = ids(3)
    add(box, given)
    before = fields(box)

    assert add(box, given) == ("o", "...")
    assert fields(box) == before


def test_members_that_have_ended_are_told(box: Box) -> None:
    open_batch(box, "wait")
    a, b, c = ids(3)
    add(box, [a, b, c])
    end(box, (a, "s"), (b, "d"))

    assert add(box, [a, b, c]) == ("o", "s!.")


def test_a_closed_batch_takes_no_new_members_but_knows_the_others(box: Box) -> None:
    open_batch(box)
    a, b = ids(2)
    add(box, [a])
    close(box)
    before = fields(box)

    assert add(box, [b]) == ("c", "")
    assert add(box, [a, b]) == ("c", "")
    assert add(box, [a]) == ("c", ".")
    assert fields(box) == before


def test_adding_an_open_member_again_is_a_change(tight: Box) -> None:
    open_batch(tight)
    a, b = ids(2)
    add(tight, [a, b])
    end(tight, (b, "s"))
    before = fields(tight)
    tight.clock.advance(60)
    tight.redis.config_set("maxmemory", 1)

    assert add(tight, [b]) == ("o", "s")
    assert fields(tight) == before
    assert add(tight, [a, b]) == ("o", ".s")
    assert fields(tight) == before | {"#touched": str(tight.clock.now_ms)}


def test_an_open_member_adds_to_a_closed_batch(box: Box) -> None:
    open_batch(box)
    a, b, c = ids(3)
    add(box, [a])
    close(box)

    assert add(box, [b], by=str(a)) == ("c", "n")
    assert add(box, [c], by=str(c)) == ("c", "")
    end(box, (a, "s"))
    assert add(box, [c], by=str(a)) == ("c", "")
    assert fields(box)["#open"] == "1"


def test_a_cancelled_batch_takes_no_members_at_all(box: Box) -> None:
    open_batch(box)
    a, b = ids(2)
    add(box, [a])
    close(box, cancelled=True)

    assert add(box, [b], by=str(a)) == ("c", "")


def test_a_batch_that_does_not_exist_is_told(box: Box) -> None:
    assert add(box, ids(2)) == ("", "")
    assert fields(box) == {}


@pytest.mark.parametrize(
    ("field", "topic", "given"),
    [("topic", "no topic", [b"x" * 26]), ("id", "rows", [b"short"]), ("ids", "rows", [])],
)
def test_wrong_arguments_change_nothing(
    box: Box, field: str, topic: str, given: list[bytes]
) -> None:
    open_batch(box)
    before = fields(box)
    with pytest.raises(redis.ResponseError, match=f"RMQARG {field}"):
        box.raw("batch_add", (box.keys.slot, box.keys.batch(NAME)), ["", topic, "", *given])
    assert fields(box) == before


def test_it_is_refused_at_maxmemory(tight: Box) -> None:
    open_batch(tight)
    tight.redis.config_set("maxmemory", 1)
    before = fields(tight)

    with pytest.raises(redis.ResponseError, match=r"OOM|maxmemory"):
        tight.run(scripts.batch_add(tight.keys, NAME, "rows", ids(3)))
    assert fields(tight) == before
