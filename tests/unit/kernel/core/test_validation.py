from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, strategies as st

from rmq.errors import InvalidType, InvalidValue
from rmq.kernel.core import validation
from rmq.kernel.core.validation import check_message_type


@given(st.integers(1, 10**9))
def test_a_duration_in_whole_milliseconds_is_kept_exactly(ms: int) -> None:
    assert validation.duration_ms(ms / 1000, "x") == ms
    assert validation.duration_ms(timedelta(milliseconds=ms), "x") == ms


def test_a_moment_is_rounded_up_so_that_nothing_is_early() -> None:
    at = datetime(2029, 1, 1, 0, 0, 0, 1, tzinfo=UTC)
    assert (
        validation.check_epoch_ms(at, "at")
        == int(datetime(2029, 1, 1, tzinfo=UTC).timestamp() * 1000) + 1
    )


def test_a_type_has_1_to_128_plain_characters() -> None:
    for good in ("a", "Order.Refunded:v2/eu_west-1", "x" * 128):
        assert check_message_type(good) == good
    for bad in ("", "x" * 129, "a b", "a\n", "ü", "a,b"):
        with pytest.raises(InvalidValue, match="A-Z a-z 0-9"):
            check_message_type(bad)
    with pytest.raises(InvalidType):
        check_message_type(7)


def test_a_number_that_no_float_can_be_is_refused_as_any_other() -> None:
    for check in (
        lambda: validation.duration_ms(10**400, "lease"),
        lambda: validation.duration_ms(-(10**400), "lease"),
        lambda: validation.check_int(10**400, "slots", 1, 1024),
        lambda: validation.check_epoch_ms(10**400, "at"),
    ):
        with pytest.raises(InvalidValue, match="give"):
            check()


@pytest.mark.parametrize("rate", [0, -1.0, float("inf"), float("nan"), True, "5", 10**400])
def test_a_rate_is_a_finite_number_above_0(rate: float) -> None:
    validation.check_rate(None)
    validation.check_rate(0.5)
    with pytest.raises(InvalidValue, match="messages a second"):
        validation.check_rate(rate)


@pytest.mark.parametrize(
    ("high_ms", "text"),
    [(30_000, "at most 30 seconds"), (validation.TEN_YEARS_MS, "at most 3653 days")],
)
def test_the_longest_duration_is_named_as_a_person_says_it(high_ms: int, text: str) -> None:
    with pytest.raises(InvalidValue, match=text):
        validation.duration_ms(1e12, "x", high_ms=high_ms)
