"""Groups in a storm of kills, stops, a Redis that dies, and resizes; and what its checker sees.

`RMQ_TEST_SEED` plays a seed again; many: `python -m tests.faults.seeds --storm groups`. A large
one: `python -m tests.faults.groups_storm --groups 10000 --each 100 --workers 16`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq.kernel.core.groups import Groups
from rmq.kernel.transport.lua import script_loader
from tests.faults.groups_account import (
    Account,
    Faults,
    deliveries,
    judge_most,
    judge_order,
)
from tests.faults.groups_mutants import apply
from tests.faults.groups_storm import opened, played, small
from tests.faults.storm import END_S, seeded


def storm(folder: Path, cluster: bool = False, **more: object) -> tuple[Account, str]:
    """Play a small storm."""
    seed, _ = seeded()
    with opened(cluster) as store:
        account, told = played(store, folder, small(seed, **more))
    print(told)
    return account, f"RMQ_TEST_SEED={seed}: {told}, {account!r}"


@pytest.mark.slow
@pytest.mark.timeout(END_S + 60)
@pytest.mark.parametrize("cluster", [False, True], ids=["one", "cluster"])
def test_groups_lose_nothing_keep_their_order_and_go_one_at_a_time(
    tmp_path: Path, cluster: bool
) -> None:
    account, told = storm(tmp_path, cluster)

    assert account.is_well, told
    assert account.handled + account.dead >= 60 * 20, told
    assert account.most == 3, told
    assert account.meanwhile > 0, told


@pytest.mark.parametrize(
    ("broken", "seen"),
    [
        ("two-out", "overlaps"),
        pytest.param("forgets-next", "stuck", marks=pytest.mark.slow),
        pytest.param("wrong-place", "disorder", marks=pytest.mark.slow),
        pytest.param("first-priority", "stuck", marks=pytest.mark.slow),
    ],
)
def test_the_storm_finds_groups_that_are_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str, seen: str
) -> None:
    monkeypatch.setattr(Groups, "of_slot", Groups.of_slot)  # they are as they were at the end
    monkeypatch.setattr(script_loader, "load", script_loader.load)
    apply(broken)
    account, told = storm(tmp_path, broken=broken, kills=0, groups=30)

    assert getattr(account, seen), told


@pytest.mark.slow
def test_the_storm_finds_slots_that_a_resize_opens_too_early(tmp_path: Path) -> None:
    account, told = storm(tmp_path, broken="opens-early", kills=4, each=60)

    assert account.disorder, told
    assert not account.lost, told


S = 1_000_000_000
LEASE = 2 * S


def judged(*lines: str, most: int = 0, dead: int | None = None, sent: int = 2) -> Account:
    """Judge deliveries of a group: "process begin end how number"; 9 stood still at 20 s."""
    faults, books = Faults(), dict[int, list[str]]()
    faults.stops[9] = [(20 * S, 30 * S)]
    for line in lines:
        process, begin, end, how, n = line.split()
        book = books.setdefault(int(process), [])
        book.append(f"b {int(begin) * S} g {n} 0\n")
        if how == "k":
            faults.deaths[int(process)] = int(end) * S
        else:
            book.append(f"{how} {int(end) * S} g {n}\n")
    found = deliveries(books, faults, LEASE // 2)["g"]
    account, buried = Account(), set() if dead is None else {dead}
    if most:
        judge_most(account, "g", sent, found, buried, most)
    else:
        judge_order(account, "g", sent, found, buried)
    return account


@pytest.mark.parametrize(
    ("lines", "dead", "lost", "disorder", "overlaps"),
    [
        (["1 1 2 d 0", "2 3 4 d 1"], None, 0, 0, 0),
        (["1 1 2 d 0", "2 3 4 f 1"], None, 1, 0, 0),
        (["1 1 2 f 0", "2 3 4 d 1"], 0, 0, 0, 0),  # dead, then the next one
        (["1 1 2 f 0", "2 3 4 d 1", "1 5 6 f 0"], 0, 0, 2, 0),  # the next one did not wait
        (["1 1 2 f 0", "2 3 4 d 0", "1 5 6 d 1"], None, 0, 0, 0),
        (["1 1 2 d 0", "2 3 4 d 0", "1 5 6 d 1"], None, 0, 0, 0),  # its ack did not arrive
        (["1 1 2 k 0", "2 3 4 d 0", "2 5 6 d 1"], None, 0, 0, 0),
        (["1 1 4 d 0", "2 3 5 d 1"], None, 0, 1, 1),
        (["1 1 4 d 0", "2 3 5 d 0", "2 6 7 d 1"], None, 0, 0, 1),  # one message twice at a time
        (["2 1 2 d 1", "1 3 4 d 0"], None, 0, 2, 0),
        (["9 19 31 d 0", "2 24 25 d 0", "2 26 27 d 1"], None, 0, 0, 0),  # it had lapsed
        (["9 19 31 d 0", "2 24 27 d 1"], None, 0, 1, 0),  # that does not excuse the next one
        (["8 19 31 d 0", "2 24 25 d 0", "2 26 27 d 1"], None, 0, 0, 2),  # nobody stood still
    ],
)
def test_the_account_itself_tells_order_from_disorder(
    lines: list[str], dead: int | None, lost: int, disorder: int, overlaps: int
) -> None:
    account = judged(*lines, dead=dead)

    assert (len(account.lost), len(account.disorder), len(account.overlaps)) == (
        lost, disorder, overlaps,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "at_once", "overlaps"),
    [
        (["1 1 4 d 0", "2 2 5 d 1", "3 6 7 d 2"], 2, 0),
        (["1 1 4 d 0", "2 2 5 d 1", "3 3 7 d 2"], 3, 1),
        (["9 19 31 d 0", "2 24 25 d 0", "3 24 26 d 1", "4 27 28 d 2"], 2, 0),
    ],
)
def test_the_account_itself_counts_how_many_are_in_flight(
    lines: list[str], at_once: int, overlaps: int
) -> None:
    account = judged(*lines, most=2, sent=3)

    assert (account.most, len(account.overlaps), account.lost) == (at_once, overlaps, [])
