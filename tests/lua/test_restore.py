"""restore.lua on a real server."""

from __future__ import annotations

import pytest

from rmq.features.dead_letters import scripts
from rmq.kernel.topic import scripts as topic_scripts
from tests.lua.box import GONE
from tests.lua.moving import bury
from tests.lua.test_trash import trash


def restore(box, *ids):
    return box.run(scripts.restore(box.keys, box.session(), ids))


def test_a_letter_comes_back_as_it_was(box):
    ids = bury(box, 3)
    before = box.state()
    trash(box, *ids)
    box.clock.advance(0.5)

    assert restore(box, *ids) == "111"

    assert box.changed(before) == {}


def test_only_letters_of_the_trash_and_each_once(box):
    a, b = bury(box, 2)
    trash(box, a)
    waiting = box.one()

    assert restore(box, a, a, b, waiting) == "1000"


def test_what_was_restored_can_be_redriven(box):
    (id,) = bury(box)
    trash(box, id)
    restore(box, id)

    assert box.run(scripts.redrive(box.handle, box.keys, box.session(), [id])) == "1"
    assert box.take_one().id == id


DAY_S = 86_400


def tidy(box):
    return box.run(topic_scripts.tidy(box.keys, 100)).dropped


@pytest.mark.parametrize("retention_s", [3600, DAY_S, 30 * DAY_S])
def test_a_letter_past_the_retention_is_kept_for_a_day_or_the_retention(make_box, retention_s):
    box = make_box(dead_retention_ms=retention_s * 1000)
    (id,) = bury(box)
    trash(box, id, keep_ms=60 * DAY_S * 1000)
    box.clock.advance(retention_s + 1)
    before, stays_s = box.state(), min(retention_s, DAY_S)

    assert restore(box, id) == "1"

    died = box.clock.now_ms - (retention_s - stays_s) * 1000
    assert box.score(id, "dead") == died
    assert box.changed(before) == {
        ("dead", id): died, ("trash", id): GONE, ("deaths", id): GONE, ("slot", "trashed"): GONE,
    }  # fmt: skip
    assert tidy(box) == 0
    box.clock.advance(stays_s - 1)
    assert tidy(box) == 0
    box.clock.advance(1)
    assert tidy(box) == 1


def test_a_letter_with_a_day_of_its_retention_left_keeps_its_time_of_death(make_box):
    box = make_box(dead_retention_ms=2 * DAY_S * 1000)
    (id,) = bury(box)
    died = box.score(id, "dead")
    trash(box, id, keep_ms=60 * DAY_S * 1000)
    box.clock.advance(DAY_S)

    assert restore(box, id) == "1"

    assert box.score(id, "dead") == died
