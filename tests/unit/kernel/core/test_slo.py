"""The setting `slo`: its text, and when it is missed."""

from __future__ import annotations

from bisect import bisect_right

import pytest

from rmq.errors import InvalidType, InvalidValue
from rmq.kernel.core import metrics, settings, slo
from rmq.kernel.core.slo import Slo


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("p99<2s", "p99<2s"),
        (" p50 < 500ms ", "p50<500ms"),
        ("p90<60", "p90<1m"),
        ("p95<1d", "p95<1d"),
        ("p99<0.0015s", "p99<2ms"),
        ("off", "off"),
        (None, "off"),
    ],
)
def test_text_is_read_and_written_in_one_form(text: str | None, kept: str) -> None:
    assert slo.check(text) == kept
    assert slo.check(kept) == kept
    assert settings.check({"slo": text}) == {"slo": kept}


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("p98<2s", "p50, p90, p95 or p99"),
        ("p99<=2s", "as p99<2s"),
        ("p99", "as p99<2s"),
        ("", "as p99<2s"),
        ("p99<soon", "'soon' is not a duration"),
        ("p99<0s", "more than 0"),
        ("p99<2d", "at most 86400 seconds"),
    ],
)
def test_other_text_is_refused_with_what_to_give(value: str, says: str) -> None:
    with pytest.raises(InvalidValue, match=says) as refused:
        slo.check(value)
    assert str(refused.value).startswith("slo: ")


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidType, match="give text, as 'p99<2s', or None"):
        slo.check(2)


def test_topic_of_an_older_version_has_none() -> None:
    stored = settings.Settings(slo="p99<2s").to_redis()
    read = settings.from_redis("t", stored)
    assert read.objective == Slo(99, 2.0)

    del stored["slo"]

    assert settings.from_redis("t", stored).objective is None


def taken(*lates_ms: int) -> metrics.Counts:
    found = [0] * metrics.BUCKETS
    for late_ms in lates_ms:
        found[bisect_right(metrics.BOUNDS_MS, late_ms)] += 1
    return tuple(found)


def test_percentile_of_the_messages_taken_is_compared() -> None:
    late = taken(*[20] * 94, *[5000] * 6)

    assert Slo(99, 2.0).is_missed(Slo(99, 2.0).lateness_s(late, 0))
    assert Slo(95, 2.0).is_missed(Slo(95, 2.0).lateness_s(late, 0))
    assert not Slo(90, 2.0).is_missed(Slo(90, 2.0).lateness_s(late, 3_600_000))


def test_while_none_is_taken_the_oldest_that_waits_is_compared() -> None:
    objective = Slo(99, 2.0)

    assert objective.lateness_s((), 0) is None
    assert not objective.is_missed(None)
    assert objective.is_missed(objective.lateness_s(metrics.NONE, 2000))
    assert not objective.is_missed(objective.lateness_s((), 1999))
