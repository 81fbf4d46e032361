import math

import pytest

import rmq
from rmq.kernel.core import retry


def test_exponential_doubles_up_to_its_cap() -> None:
    assert retry.Exponential(1, 10).ladder(6) == (1000, 2000, 4000, 8000, 10_000, 10_000)


def test_levels_repeat_the_last_and_default_to_those_of_rocketmq() -> None:
    assert retry.Levels((1, 5)).ladder(4) == (1000, 5000, 5000, 5000)
    ladder = retry.Levels().ladder(16)
    assert (ladder[0], ladder[-1], len(ladder)) == (10_000, 7_200_000, 16)


@pytest.mark.parametrize(
    "policy",
    [
        retry.Immediate(),
        retry.Exponential(0.05, 2, 0.5),
        retry.Exponential(),
        retry.Levels((1, 2.5)),
    ],
)
def test_a_policy_read_from_its_text_is_the_same(policy: retry.Policy) -> None:
    for again in (retry.from_redis(policy.to_redis()), retry.parse_policy(retry.describe(policy))):
        assert again.ladder(16) == policy.ladder(16)
        assert again.jitter == policy.jitter


def test_a_number_without_unit_in_the_text_of_a_policy_is_seconds() -> None:
    assert retry.parse_policy("exponential:1:60:1") == rmq.Exponential(1, 60, 1)
    assert retry.parse_policy("levels:500ms,2m") == rmq.Levels((0.5, 120))
    with pytest.raises(rmq.InvalidValue, match=r"retry: 'exponential:1:x:1' .*'x' is not a dura"):
        retry.parse_policy("exponential:1:x:1")


@pytest.mark.parametrize(
    "make",
    [
        lambda: retry.Exponential(0),
        lambda: retry.Exponential(jitter=1.5),
        lambda: retry.Exponential(base=math.nan),
        lambda: retry.Levels(()),
        lambda: retry.Levels((1,) * 17),
        lambda: retry.Levels((0,)),
    ],
)
def test_a_policy_that_cannot_work_is_refused(make: object) -> None:
    with pytest.raises(rmq.InvalidValue, match=r"retry|jitter"):
        make()  # type: ignore[operator]
