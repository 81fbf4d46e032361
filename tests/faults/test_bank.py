"""Money is moved once while everything dies: rungs 3, 4 and 5 on real servers.

Each transfer is sent one to three times, with the same message id or another; tellers kill
themselves at every step; Redis and PostgreSQL are killed; claims are deleted. In the end each
transfer is applied once, to the cent, and nothing is left over. `RMQ_TEST_TRANSFERS=20000` makes
the short runs long, and adds some; `RMQ_TEST_SEED` plays a seed again. Many seeds of
small runs, of all ways: `python -m tests.faults.seeds --storm bank`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import any_binary
from tests.databases import Database, Postgres, fresh
from tests.faults.bank_scene import opened
from tests.faults.bank_storm import LEASE_S, SLOTS, Storm, played
from tests.faults.storm import END_S, insist, seeded
from tests.servers import Server

ASKED = os.environ.get("RMQ_TEST_TRANSFERS", "")
FEW = 150
SOME = int(ASKED or 400)
MANY = int(ASKED or 800)  # where each fault comes twice

asked = pytest.mark.skipif(
    not ASKED, reason="a long run: RMQ_TEST_TRANSFERS=20000; its moments are in test_bank_moments"
)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(END_S + 60)]


class Servers(NamedTuple):
    """The servers of a run, which it kills."""

    redis: Server
    database: Database


@pytest.fixture
def servers(durable: Postgres) -> Iterator[Servers]:
    redis = Server(any_binary(), "--appendfsync", "always", aof=True)
    try:
        with fresh(durable) as database:
            yield Servers(redis, database)
    finally:
        redis.stop()


class Play:
    """Plays a storm, and insists that all of it happened and all is well."""

    def __init__(self, servers: Servers, name: str, folder: Path) -> None:
        self.servers = servers
        self.name = name
        self.folder = folder

    def __call__(self, way: str, count: int, kills: int = 1) -> None:
        seed, rng = seeded()
        with opened(*self.servers, self.name, self.folder, (way,), LEASE_S, SLOTS) as bank:
            try:
                found = played(bank, rng, count, kills)
            except AssertionError as error:
                raise AssertionError(f"RMQ_TEST_SEED={seed}: {error}") from error
        print(f"FIG bank, {way}, seed {seed}: {found.figures}")
        insist(not found.dropped, f"RMQ_TEST_SEED={seed}: {found}")


@pytest.fixture
def play(servers: Servers, name: str, tmp_path: Path) -> Play:
    return Play(servers, name, tmp_path)


def test_rung_5_moves_each_transfer_once(play: Play) -> None:
    play("transaction", MANY, kills=2)


@asked
def test_rung_5_behind_claims_that_are_deleted_moves_each_transfer_once(play: Play) -> None:
    play("claims+transaction", SOME)


def test_rung_3_moves_each_transfer_once_unless_stopped_between_check_and_commit(
    play: Play,
) -> None:
    play("claims+check", SOME)


@asked
def test_rung_3_with_a_condition_in_its_transaction_moves_each_transfer_once(play: Play) -> None:
    play("claims+check+condition", SOME)


def test_rung_4_with_a_check_moves_each_transfer_once_unless_stopped_between_check_and_commit(
    play: Play,
) -> None:
    play("ledger+check", SOME)


@asked
def test_rung_4_with_a_condition_in_its_transaction_moves_each_transfer_once(play: Play) -> None:
    play("ledger+condition", SOME)


def test_a_plan_whose_passes_never_come_is_played_to_its_end(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With claims `taken` comes once for a take, which may be of all that waits."""
    monkeypatch.setattr(Storm, "_passes", lambda *_: 100_000)

    play("claims+check", FEW)
