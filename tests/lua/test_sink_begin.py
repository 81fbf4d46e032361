"""sink_begin.lua on a real server."""

from __future__ import annotations

from rmq.features.spark.scripts import SinkReply, sink_begin, sink_end
from rmq.kernel.core.keys import sink_key
from tests.lua.box import Box


def kept(box: Box) -> dict[bytes, bytes]:
    return box.redis.hgetall(sink_key("rmq", box.handle.name, "q"))


def test_first_one_to_name_stages_decides(box):
    assert box.run(sink_begin(box.handle, "q", 7, b"first")) == SinkReply("open", 7, b"first")
    assert box.run(sink_begin(box.handle, "q", 7, b"second")) == SinkReply("open", 7, b"first")
    assert box.run(sink_begin(box.handle, "q", 7)) == SinkReply("open", 7, b"first")

    assert kept(box) == {b"batch": b"7", b"stages": b"first"}
    assert box.redis.ttl(sink_key("rmq", box.handle.name, "q")) == -1


def test_begin_sent_twice_says_the_same_and_changes_nothing(box):
    box.twice(lambda: sink_begin(box.handle, "q", 0, b"text"))

    assert kept(box) == {b"batch": b"0", b"stages": b"text"}


def test_asking_writes_nothing(box):
    assert box.run(sink_begin(box.handle, "q", 7)) == SinkReply("new")

    assert kept(box) == {}


def test_batch_that_is_published_or_before_one_that_is_has_nothing_to_do(box):
    box.run(sink_begin(box.handle, "q", 7, b"first"))
    box.run(sink_end(box.handle, "q", 7))

    for batch in (0, 6, 7):
        assert box.run(sink_begin(box.handle, "q", batch, b"again")) == SinkReply("done")
    assert box.run(sink_begin(box.handle, "q", 8)) == SinkReply("new")
    assert kept(box) == {b"done": b"7"}


def test_earlier_batch_that_is_under_way_has_to_be_ended_first(box):
    box.run(sink_begin(box.handle, "q", 7, b"first"))

    assert box.run(sink_begin(box.handle, "q", 8, b"second")) == SinkReply("open", 7, b"first")
    assert kept(box) == {b"batch": b"7", b"stages": b"first"}


def test_queries_do_not_meet(box):
    box.run(sink_begin(box.handle, "q", 7, b"first"))

    assert box.run(sink_begin(box.handle, "other", 7)) == SinkReply("new")
