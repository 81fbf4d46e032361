"""sink_end.lua on a real server."""

from __future__ import annotations

import pytest

from rmq.features.spark.scripts import sink_begin, sink_end
from tests.lua.test_sink_begin import kept


def test_end_notes_the_batch_and_forgets_its_stages(box):
    box.run(sink_begin(box.handle, "q", 7, b"text"))

    assert box.run(sink_end(box.handle, "q", 7)) is True

    assert kept(box) == {b"done": b"7"}


def test_end_sent_twice_finds_nothing_under_way(box):
    box.run(sink_begin(box.handle, "q", 7, b"text"))
    box.run(sink_end(box.handle, "q", 7))

    assert box.twice(lambda: sink_end(box.handle, "q", 7)) is False

    assert kept(box) == {b"done": b"7"}


@pytest.mark.parametrize("batch", [6, 8])
def test_another_batch_than_the_one_under_way_is_not_ended(box, batch):
    box.run(sink_begin(box.handle, "q", 7, b"text"))
    before = kept(box)

    assert box.run(sink_end(box.handle, "q", batch)) is False

    assert kept(box) == before


def test_end_where_there_is_no_sink_creates_none(box):
    assert box.run(sink_end(box.handle, "q", 7)) is False

    assert kept(box) == {}
