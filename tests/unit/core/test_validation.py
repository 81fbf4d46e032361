from datetime import UTC, datetime, timedelta

from hypothesis import given, strategies as st

from rmq.core import validation


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
