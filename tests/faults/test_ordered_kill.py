"""kill -9 of ordered consumers in the middle of a batch, while others come and go."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import rmq
from tests.faults.keyed import start
from tests.faults.order_account import Account, account
from tests.forkserver import Forked
from tests.patience import PATIENCE_S
from tests.servers import Server

KEYS, EACH, SLOTS, PROCESSES, VICTIMS = 200, 10, 16, 4, 2


def run(
    client: rmq.Client, server: Server, name: str, log: Path, ordered: bool
) -> tuple[Account, int, int]:
    """Handle everything by processes that come and go; the verdict, kills, processes in all."""
    topic = client.topic(name, slots=SLOTS, retry=rmq.Exponential(base=0.05, cap=0.2))
    sent = {f"key{k}": EACH for k in range(KEYS)}
    topic.send_many([rmq.Outgoing([key, n], slot_basis=key) for n in range(EACH) for key in sent])
    log.touch()
    alive: list[Forked] = []
    victims: dict[int, Forked] = {}
    started = killed = 0
    until = time.monotonic() + 4 * PATIENCE_S
    try:
        while client.admin.stats(name)["records"]:
            assert time.monotonic() < until, log.with_suffix(".err").read_text()
            alive = [one for one in alive if one.poll() is None]
            while len(alive) < PROCESSES:
                one = start(server.url, name, log, ordered, victim=started < VICTIMS)
                if started < VICTIMS:
                    victims[one.pid] = one
                alive.append(one)
                started += 1
            for line in log.read_text().splitlines():
                if line.startswith("stuck") and (one := victims.pop(int(line.split()[3]), None)):
                    one.kill()
                    killed += 1
            time.sleep(0.05)
    finally:
        for one in [*alive, *victims.values()]:
            one.kill()
            one.wait()
    return account(log.read_text().splitlines(), sent, back=1), killed, started


def test_order_outlives_kills_and_consumers_that_come_and_go(
    server: Server, client: rmq.Client, name: str, tmp_path: Path,
) -> None:  # fmt: skip
    begun = time.monotonic()
    verdict, killed, started = run(client, server, name, tmp_path / "log", ordered=True)

    spent = time.monotonic() - begun
    print(f"FIG ordered: {verdict}; {killed} of {started} killed, {spent:.1f} s")
    assert verdict.violations == []
    assert verdict.lost == []
    assert verdict.handled >= KEYS * EACH
    assert killed == VICTIMS
    assert started > PROCESSES + VICTIMS
    assert verdict.again >= VICTIMS


@pytest.mark.slow
def test_plain_consumers_are_seen_to_break_the_order(
    server: Server, client: rmq.Client, name: str, tmp_path: Path,
) -> None:  # fmt: skip
    """Negative control: the same run without `ordered`. Nothing is lost, the order is."""
    verdict, killed, started = run(client, server, name, tmp_path / "log", ordered=False)

    print(f"FIG plain: {verdict}; {killed} of {started} killed")
    assert verdict.violations
    assert verdict.lost == []


@pytest.mark.parametrize(
    ("lines", "violations", "lost"),
    [
        (["begin a 0", "done a 0", "begin a 1", "done a 1"], 0, 0),
        (["begin a 0", "begin a 0", "done a 0", "begin a 0", "done a 0", "begin a 1"], 0, 1),
        (["begin a 0", "begin a 1", "done a 0", "done a 1"], 1, 0),
        (["begin a 1", "done a 1", "begin a 0", "done a 0"], 2, 0),
        (["begin a 0", "done a 0", "begin b 0", "begin a 1"], 0, 1),
        (["begin a 0", "done a 0", "begin a 1", "done a 1", "begin a 0"], 1, 0),
        (["begin a 0", "done a 0", "begin a 0", "begin a 1"], 1, 1),
    ],
)
def test_the_checker_itself_tells_order_from_disorder(
    lines: list[str], violations: int, lost: int
) -> None:
    verdict = account([f"{line} 7" for line in lines], {"a": 2}, back=1)
    assert (len(verdict.violations), len(verdict.lost)) == (violations, lost)


def test_the_checker_itself_tells_who_begins_again_after_a_kill() -> None:
    found = account(["begin a 0 7", "begin a 0 8", "begin a 0 8", "done a 0 8"], {"a": 1}, [7])
    assert (found.violations, found.again, found.excused) == ([], 2, 1)
