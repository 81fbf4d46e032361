"""Queues are named by the design's names and by the words that people use."""

from __future__ import annotations

from typing import get_args

import pytest

import rmq
from rmq.core.queues import IN_WORDS, QUEUES, QueueWord, parse_queue


@pytest.mark.parametrize(
    ("text", "queue"),
    [
        ("store", "store"), ("waiting", "store"),
        ("prepare", "prepare"), ("in_flight", "prepare"), ("in flight", "prepare"),
        ("in-flight", "prepare"), ("dead", "dead"),
    ],
)  # fmt: skip
def test_a_queue_is_known_by_its_name_and_by_its_word(text: str, queue: str) -> None:
    assert parse_queue(text) == queue


def test_every_word_that_a_type_checker_accepts_is_parsed() -> None:
    assert {parse_queue(word) for word in get_args(QueueWord)} == set(QUEUES)
    assert [parse_queue(IN_WORDS[queue]) for queue in QUEUES] == list(QUEUES)


@pytest.mark.parametrize("text", ["", "stor", "STORE", "inflight", "settled", "store "])
def test_another_word_is_refused_and_the_names_are_listed(text: str) -> None:
    with pytest.raises(rmq.InvalidValue, match=r"^place: .*give one of store, prepare, dead"):
        parse_queue(text)


def test_a_value_that_is_not_a_text_is_refused() -> None:
    for value in (1, None, ["store"]):
        with pytest.raises(rmq.InvalidValue, match=r"^queue: .*; give one of"):
            parse_queue(value, "queue")
