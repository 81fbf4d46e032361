"""Tasks and threads that send and settle at once: each caller is told the truth.

`python -m tests.faults.seeds --storm senders` plays many seeds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from rmq.kernel.transport.flow import coalescing
from tests.conftest import any_binary
from tests.faults import senders
from tests.faults.hostile import Pair, pair
from tests.faults.storm import END_S, Played, seeded
from tests.servers import Server

pytestmark = pytest.mark.timeout(END_S + 60)


def play(storm: Callable[..., Played], servers: Server | Pair, name: str) -> None:
    """Play a storm by a seed that a failure names."""
    seed, rng = seeded()
    try:
        found = storm(servers, name, rng)
    except AssertionError as error:
        raise AssertionError(f"RMQ_TEST_SEED={seed}: {error}") from error
    print(f"FIG {storm.__name__}, seed {seed}: {found.figures}")
    assert "'down': 1" in found.figures


@pytest.mark.fault("F36")
def test_each_caller_is_told_the_truth_while_redis_is_killed(own_server: Server, name: str) -> None:
    play(senders.killed, own_server, name)


@pytest.mark.slow
@pytest.mark.fault("F36")
def test_each_caller_is_told_the_truth_while_a_replica_takes_over(name: str) -> None:
    with pair(any_binary()) as servers:
        play(senders.failed_over, servers, name)


Finish = Callable[[Sequence[Any], Sequence[Any]], None]


def rotated(finish: Finish) -> Finish:
    """Give each caller the outcome of its neighbour."""
    return lambda callers, outcomes: finish(callers, [*outcomes[1:], *outcomes[:1]])


def hopeful(finish: Finish) -> Finish:
    """Tell callers whose message was refused, or is not known to be stored, that all is well."""

    def all_well(callers: Sequence[Any], outcomes: Sequence[Any]) -> None:
        good = next((one for one in outcomes if type(one).__name__ == "SendResult"), None)
        finish(callers, [good or one for one in outcomes])

    return all_well


@pytest.mark.parametrize("broken", [rotated, pytest.param(hopeful, marks=pytest.mark.slow)])
@pytest.mark.fault("F36", control=True)
def test_callers_that_are_told_something_else_are_noticed(
    broken: Callable[[Finish], Finish],
    own_server: Server,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Negative control."""
    monkeypatch.setattr(coalescing, "finish", broken(coalescing.finish))

    with pytest.raises(AssertionError):
        senders.killed(own_server, name, random.Random(2))
