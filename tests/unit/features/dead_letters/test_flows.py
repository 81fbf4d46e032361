"""Which dead letters a filter matches."""

from __future__ import annotations

import msgpack
import pytest

from rmq.errors import InvalidType, InvalidValue
from rmq.features.dead_letters.flows import Filter
from rmq.kernel.core import codec, failure
from rmq.kernel.topic import reading
from rmq.kernel.topic.filter_terms import Letter
from rmq.kernel.topic.scripts import QueueMember

NOW_MS = 1_790_000_000_000


def dead(reason: bytes = b"f", error: str = "", died_ms: int = NOW_MS) -> QueueMember:
    entry = b"\x00\x11" + reason + bytes(7) + failure.encode(error)  # at the epoch
    return QueueMember("dead", bytes(16), float(died_ms), b"", entry, 1)


def test_a_filter_without_conditions_matches_everything() -> None:
    assert Filter().everything
    assert Filter().fits(dead(), NOW_MS)
    assert not Filter(ids=[]).everything


def test_the_beginning_of_the_reason_is_enough() -> None:
    assert Filter(reason="fail").fits(dead(b"f"), NOW_MS)
    assert not Filter(reason="fail").fits(dead(b"r"), NOW_MS)
    assert not Filter(reason="fail").fits(dead()._replace(failure=b""), NOW_MS)


def test_the_error_is_searched_for_the_text_in_upper_or_lower_case() -> None:
    assert Filter(error="TIME is").fits(dead(error="a time is out"), NOW_MS)
    assert not Filter(error="time.*out").fits(dead(error="a time is out"), NOW_MS)


def test_a_letter_is_old_enough_to_the_millisecond() -> None:
    assert Filter(older_than=5).fits(dead(died_ms=NOW_MS - 5000), NOW_MS)
    assert not Filter(older_than=5).fits(dead(died_ms=NOW_MS - 4999), NOW_MS)


def test_all_conditions_must_fit() -> None:
    wanted = Filter(reason="failed", older_than=5)

    assert not wanted.fits(dead(b"f"), NOW_MS)
    assert not wanted.fits(dead(b"r", died_ms=0), NOW_MS)
    assert wanted.fits(dead(b"f", died_ms=0), NOW_MS)


def test_a_condition_that_no_letter_can_fit_is_refused() -> None:
    with pytest.raises(InvalidValue, match="known are failed"):
        Filter(reason="broke")
    with pytest.raises(InvalidType, match="pass text that the error contains"):
        Filter(error=7)  # type: ignore[arg-type]


def _headed(headers: dict[str, str]) -> bytes:
    packed = msgpack.packb(headers)
    head = bytes((codec.JSON.number << 5 | 16, 0, 1, 0)) + bytes(4)
    return head + len(packed).to_bytes(2, "big") + packed + b'{"n":7}'


@pytest.mark.parametrize("place", ["dead", "trash"])
@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"cut",
        bytes((codec.JSON.number << 5, 0, 0, 17)) + bytes(4) + b'{"n":7}',
        bytes((codec.JSON.number << 5, 0, 0, 0)) + bytes(4) + b"no JSON",
        _headed({"tenant": "7", "rmq-type": "refund"}),
    ],
)
def test_a_filter_reads_a_letter_as_its_message_shows_it(place: str, record: bytes) -> None:
    member = dead(error="a time is out")._replace(queue=place, record=record)

    letter, (message,) = Letter(member), reading.messages_of([member], 3)

    for name in ("id", "body", "priority", "headers", "deliveries", "died", "failure", "type"):
        assert getattr(letter, name) == getattr(message, name), name


def test_a_body_that_no_condition_reads_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "body_of", lambda entry: pytest.fail("decoded"))
    member = dead(error="boom")._replace(record=_headed({"tenant": "7"}))

    assert Filter(filter="error contains boom and header.tenant=7").fits(member, NOW_MS)
    with pytest.raises(pytest.fail.Exception):
        Filter(filter="body.n=7").fits(member, NOW_MS)
