from __future__ import annotations

import pytest

import rmq
from rmq.kernel.core.message import parse_queue


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("store", "store"), ("waiting", "store"), ("Waiting", "store"),
        ("prepare", "prepare"), ("in flight", "prepare"), ("in-flight", "prepare"),
        ("in_flight", "prepare"), ("dead", "dead"),
    ],
)  # fmt: skip
def test_both_names_of_a_queue_are_accepted(text: str, name: str) -> None:
    assert parse_queue(text) == name


@pytest.mark.parametrize("text", ["", "all", "in  flight", "stores", None, 1])
def test_another_name_is_refused_with_the_names_there_are(text: object) -> None:
    with pytest.raises(rmq.InvalidValue, match=r"^place: .* store \(or waiting\), prepare"):
        parse_queue(text, "place")
