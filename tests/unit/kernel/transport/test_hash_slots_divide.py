"""Commands that name several slots are divided by hash slot, and their replies put together."""

from __future__ import annotations

import pytest

from rmq.errors import ScriptFailed, TopicVanished
from rmq.kernel.consumer import scripts
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.transport.hash_slots import divide

SLOTS = [SlotKeys("rmq", "t", n, b"stamp%d" % n) for n in range(4)]


def parity(key: bytes) -> int:
    """Stand in for the hash slot: that of slots 0 and 2, and that of slots 1 and 3."""
    return int(key.split(b"}")[0][-1:]) % 2


def test_slots_of_one_hash_slot_are_one_call() -> None:
    assert divide(scripts.next_ready(SLOTS, True), lambda key: 7) is None


def test_each_part_has_the_keys_of_its_slots_and_the_replies_are_in_order() -> None:
    divided = divide(scripts.next_ready(SLOTS, True), parity)

    assert divided is not None
    assert [[parity(key) for key in part.keys] for part in divided.parts] == [[0] * 6, [1] * 6]
    assert [part.args[1:] for part in divided.parts] == [[1, b"stamp0"]] * 2
    assert divided.join([[10, 12], [11, 13]]) == [10, 11, 12, 13]


def test_stamps_of_many_topics_go_with_their_slots() -> None:
    divided = divide(scripts.next_ready(SLOTS, True, many_topics=True), parity)

    assert divided is not None
    assert [part.args[2:] for part in divided.parts] == [
        [b"stamp0", b"stamp2"],
        [b"stamp1", b"stamp3"],
    ]


def test_a_topic_that_was_deleted_does_not_hide_the_others() -> None:
    gone = TopicVanished("gone")
    divided = divide(scripts.next_ready(SLOTS[:3], True, many_topics=True), parity)
    assert divided is not None
    assert divided.join([[1, 2], gone]) == [1, -2, 2]

    of_one_topic = divide(scripts.next_ready(SLOTS[:3], True), parity)
    assert of_one_topic is not None
    with pytest.raises(TopicVanished):
        of_one_topic.join([[1, 2], gone])


def test_any_other_error_is_raised() -> None:
    divided = divide(scripts.next_ready(SLOTS, True, many_topics=True), parity)
    assert divided is not None
    with pytest.raises(ScriptFailed):
        divided.join([[1, 2], ScriptFailed("no")])
