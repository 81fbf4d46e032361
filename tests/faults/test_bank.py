"""Money is moved once while everything dies: rungs 3, 4 and 5 on real servers.

Each transfer is sent one to three times, with the same message id or another; tellers kill
themselves at every step; Redis and PostgreSQL are killed; claims are deleted. In the end each
transfer is applied once, to the cent, and nothing is left over. `RMQ_TEST_TRANSFERS=20000` makes
the short runs long, and adds some; `RMQ_TEST_SEED` plays a seed again.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conftest import any_binary
from tests.databases import Database, Postgres, fresh
from tests.faults.bank_child import STEPS
from tests.faults.bank_scene import opened, seeded
from tests.faults.bank_storm import LEASE_S, Storm, figures
from tests.servers import Server

ASKED = os.environ.get("RMQ_TEST_TRANSFERS", "")
SOME = int(ASKED or 1000)
MANY = int(ASKED or 2000)  # where each fault comes twice
BOTH = ("redis", "postgres")
WITHIN_S = 1200.0  # on a machine that is busy with other things

asked = pytest.mark.skipif(
    not ASKED, reason="a long run: RMQ_TEST_TRANSFERS=20000; its moments are in test_bank_moments"
)
pytestmark = pytest.mark.timeout(WITHIN_S + 60)


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
    """Plays a storm, prints its figures, and insists that all of it happened and all is well."""

    def __init__(self, servers: Servers, name: str, folder: Path, capsys: Any) -> None:
        self.servers = servers
        self.name = name
        self.folder = folder
        self.capsys = capsys

    def __call__(
        self, way: str, count: int, *, stop: str, kills: int = 1, hurts: tuple[str, ...] = BOTH,
        forgets: str = "",
    ) -> None:  # fmt: skip
        seed, rng = seeded()
        self.say(f"{way}: RMQ_TEST_SEED={seed}")
        with opened(*self.servers, self.name, self.folder, (way,), LEASE_S) as bank:
            began = time.monotonic()
            storm = Storm(
                bank, rng, count, kills=kills, stop=stop, hurts=hurts, forgets=forgets,
                within_s=WITHIN_S,
            )  # fmt: skip
            books = storm.run()
            self.say(f"{way}: {figures(storm, books, time.monotonic() - began)}")

        assert books.state == "valid"
        assert (books.ordered, books.rows) == (count, count)
        wanted = Counter({f"kill {step}": kills for step in STEPS})
        wanted += Counter(f"kill {name}" for name in hurts)
        wanted += Counter({f"stop {stop}": 1, "go on": 1})
        deleted = {name: n for name, n in books.fired.items() if name.startswith("delete")}
        assert bool(deleted) == bool(forgets)
        assert books.fired == wanted + Counter(deleted)

    def say(self, text: str) -> None:
        with self.capsys.disabled():
            print(f"\nFIG bank, {text}")


@pytest.fixture
def play(servers: Servers, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Play:
    return Play(servers, name, tmp_path, capsys)


def test_rung_5_moves_each_transfer_once(play: Play) -> None:
    play("transaction", MANY, stop="within", kills=2, hurts=BOTH + BOTH)


@asked
def test_rung_5_behind_claims_that_are_deleted_moves_each_transfer_once(play: Play) -> None:
    play("claims+transaction", SOME, stop="within", forgets="any")


def test_rung_3_moves_each_transfer_once_unless_stopped_between_check_and_commit(
    play: Play,
) -> None:
    play("claims+check", SOME, stop="claimed", forgets="consumed")


@asked
def test_rung_3_with_a_condition_in_its_transaction_moves_each_transfer_once(play: Play) -> None:
    play("claims+check+condition", SOME, stop="within", forgets="any")


def test_rung_4_with_a_check_moves_each_transfer_once_unless_stopped_between_check_and_commit(
    play: Play,
) -> None:
    play("ledger+check", SOME, stop="claimed")


@asked
def test_rung_4_with_a_condition_in_its_transaction_moves_each_transfer_once(play: Play) -> None:
    play("ledger+condition", SOME, stop="within")
