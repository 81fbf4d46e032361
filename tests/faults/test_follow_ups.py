"""Chains of follow-ups over five topics, whose processes are killed between every two commands.

`RMQ_TEST_SEED` plays a seed again; many: `python -m tests.faults.seeds --storm follow-ups`.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.follow_ups_storm import PLACES, Found, Storm, opened, played
from tests.faults.follower import DYING
from tests.faults.storm import END_S, seeded

pytestmark = [pytest.mark.slow, pytest.mark.timeout(END_S)]


@pytest.mark.fault("F37")
@pytest.mark.parametrize("place", PLACES)
def test_each_follow_up_of_a_chain_is_sent_once_whatever_dies(
    place: str, name: str, tmp_path: Path
) -> None:
    seed, rng = seeded()
    print(f"RMQ_TEST_SEED={seed}")

    found = played(place, tmp_path, name, rng)

    print(f"FIG follow-ups, {found.figures}")
    assert not found.dropped


@pytest.mark.fault("F37")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("how", DYING)
def test_each_dead_letter_is_followed_by_one_message_whatever_dies(
    how: str, place: str, name: str, tmp_path: Path
) -> None:
    seed, rng = seeded()
    print(f"RMQ_TEST_SEED={seed}")

    found = played(place, tmp_path, name, rng, how)

    print(f"FIG dead letters, {found.figures}")
    assert not found.dropped


def broken(tmp_path: Path, name: str, command: str, place: str = "one", **options: str) -> Found:
    """Play a storm in which one process after the other dies before a command."""
    deaths = [(command, nth) for nth in (0, 1, 2, 5)]
    with opened(place) as redis:
        return Storm(
            redis,
            tmp_path,
            name,
            random.Random(1),
            deaths=deaths,
            others=False,
            processes=1,
            **options,
        ).run()


@pytest.mark.fault("F37", control=True)
@pytest.mark.parametrize(
    ("options", "command"),
    [
        ({"how": "send_first"}, "ack"),
        ({"broken": "number-not-compared"}, "pending_settle"),
        *[
            ({"how": "dead_to", "broken": "number-not-compared", "place": place}, "pending_settle")
            for place in PLACES
        ],
        ({"how": "dead_to", "broken": "nack-copies-twice"}, "nack"),
    ],
    ids=lambda value: str(value),
)
def test_variants_that_send_twice_are_found(
    name: str, tmp_path: Path, options: dict[str, str], command: str
) -> None:
    found = broken(tmp_path, name, command, **options)

    assert not found.is_well, found
    assert max(one["accepted"] for one in found.stats) > found.sent, found


@pytest.mark.fault("F37", control=True)
@pytest.mark.parametrize(
    ("options", "command"),
    [
        ({"how": "ack_first"}, "send"),
        ({"broken": "removed-first"}, "pending_send"),
        *[
            ({"how": "dead_to", "broken": "removed-first", "place": place}, "pending_send")
            for place in PLACES
        ],
        ({"how": "dead_to", "broken": "lease-copies-nothing"}, "reject"),
    ],
    ids=lambda value: str(value),
)
def test_variants_that_lose_messages_are_found(
    name: str, tmp_path: Path, options: dict[str, str], command: str
) -> None:
    found = broken(tmp_path, name, command, **options)

    assert not found.is_well, found
    assert found.lost, found
