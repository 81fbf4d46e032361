"""Entries of results: what a consumer gives, and what is read of any bytes."""

from __future__ import annotations

import msgpack
import pytest

from rmq.kernel.results import entry
from rmq.kernel.results.entry import Entry

AT = 1_790_000_000_123


def stored(letter: bytes, details: bytes = b"") -> bytes:
    """An entry as the scripts store it."""
    return letter + AT.to_bytes(6, "big") + details


@pytest.mark.parametrize("kind", [2, entry.TOO_LARGE, entry.NOT_ENCODABLE, None])
@pytest.mark.parametrize("value", [b"", b"\xc1 any bytes"])
def test_a_success_is_read_as_it_was_given(kind: entry.Kind, value: bytes) -> None:
    given = entry.encode_success("host:7", 3, AT - 500, kind, value)

    assert entry.decode(stored(given[:1], given[1:])) == Entry(
        "succeeded", AT, "host:7", 3, AT - 500, kind, value
    )


def test_progress_is_read_as_it_was_given() -> None:
    details = entry.encode_progress(0.4, "page 12 of 30", 2, "host:7")

    assert entry.decode(stored(b"r", details)) == Entry(
        "running", AT, "host:7", 2, fraction=0.4, text="page 12 of 30"
    )


@pytest.mark.parametrize(("letter", "outcome"), list(entry.OUTCOMES.items())[2:])
def test_other_outcomes_have_the_failure_entry(letter: str, outcome: str) -> None:
    assert entry.decode(stored(letter.encode(), b"failure")) == Entry(
        outcome, AT, failure=b"failure"
    )


@pytest.mark.parametrize(("letter", "outcome"), [(b"s", "succeeded"), (b"h", "handed_over")])
def test_a_consumer_may_give_no_details(letter: bytes, outcome: str) -> None:
    assert entry.decode(stored(letter)) == Entry(outcome, AT)


@pytest.mark.parametrize("letter", [b"s", b"r"])
def test_details_that_cannot_be_read_are_omitted(letter: bytes) -> None:
    outcome = "succeeded" if letter == b"s" else "running"
    for details in (b"\xc1", b"\x94\x01", msgpack.packb([1]), msgpack.packb(7), b"\xc6"):
        assert entry.decode(stored(letter, details)) == Entry(outcome, AT)


@pytest.mark.parametrize("damaged", [b"", b"s", b"s12345", b"x1234567", b"\xff1234567"])
def test_what_is_no_entry_is_none(damaged: bytes) -> None:
    assert entry.decode(damaged) is None
