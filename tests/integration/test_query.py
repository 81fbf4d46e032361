"""What an engine that replays counts on: how often a batch was begun."""

from __future__ import annotations

import rmq


def test_runs_that_begin_a_batch_are_counted_and_the_next_batch_begins_anew(
    client: rmq.Client, name: str
) -> None:
    topic = client.topic(name)
    topic.open()
    query = topic.query("a" * 32, "here")

    first = [query.begun("0,5", by) for by in ("one", "one", "two", "two", "three")]
    second = [query.begun("0,9", by) for by in ("three", "four")]

    assert first == [1, 1, 2, 2, 3]
    assert second == [1, 2]
    assert topic.query("b" * 32, "here").begun("0,9", "one") == 1
