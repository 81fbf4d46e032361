"""A topic is resized 4 -> 16 -> 8 under load of worker processes, which are killed, as Redis is."""

from __future__ import annotations

import os
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

import rmq
from tests.faults.ordered_worker import Account, account
from tests.faults.test_resize import FIRST, Producer, resize
from tests.forkserver import Forked
from tests.servers import Server

WORKERS, KILLS = 4, 4
GONE_S = 30.0 if os.environ.get("RMQ_TEST_LONG") else 3.0
RETRY_FOR_S = 30.0  # of the producer, at most


class PausingProducer(Producer):
    """Sends nothing while somebody has its lock."""

    def __init__(self, url: str, name: str) -> None:
        super().__init__(url, name)
        self.sending = threading.Lock()

    def send_next(self) -> None:
        with self.sending:
            super().send_next()


class Group:
    """Workers that are started again when they end, and killed one after the other."""

    def __init__(self, url: str, name: str, log: Path, lease_s: float) -> None:
        self._words = (url, name, str(log), str(lease_s))
        self._done = log
        self._log = log.with_suffix(".err")
        self._alive = [self._start() for _ in range(WORKERS)]
        self.killed: set[int] = set()

    def _start(self) -> Forked:
        with self._log.open("ab") as errors:
            return Forked("tests.faults.ordered_worker", *self._words, stderr=errors)

    def kill_busy(self) -> None:
        """Kill a worker in the middle of a run, if there is one just now."""
        lines = self._done.read_text().splitlines()
        word, *_, pid = lines[-1].split() if lines else ("", "0")
        victim = next((each for each in self._alive if each.pid == int(pid)), None)
        if word == "begin" and victim is not None:
            victim.kill()
            self.killed.add(victim.pid)
            victim.wait()
            self._alive[self._alive.index(victim)] = self._start()

    def close(self) -> None:
        for worker in self._alive:
            worker.kill()
            worker.wait()


def run(
    server: Server, name: str, log: Path, *, opens_early: bool = False, gone_s: float = 0.0
) -> tuple[Account, int]:
    """Resize under load; the account, and how many workers were killed."""
    failures: list[BaseException] = []
    is_begun, is_back = threading.Event(), threading.Event()
    with rmq.Client(server.url, retry_for=30) as client:
        client.topic(name, slots=4, retry=rmq.Exponential(base=0.05, cap=0.2)).open()
        producer = PausingProducer(server.url, name)
        for _ in range(FIRST):
            producer.send_next()
        log.touch()

        def change() -> None:
            try:
                for slots in (16, 8):
                    client.admin.topic_resize(name, slots, wait=False)
                    is_begun.set()
                    if opens_early:
                        for key in list(server.raw().scan_iter(f"rmq:{{{name}_*}}:slot")):
                            server.raw().hdel(key, "paused")
                        return
                    if gone_s:
                        command = Forked("tests.faults.resizer", server.url, name, str(slots))
                        assert is_back.wait(gone_s + 60)
                        command.wait()  # it may have given up
                    resize(client, server.url, name, slots, 2, None)
            except BaseException as error:
                failures.append(error)

        changer = threading.Thread(target=change, daemon=True)
        group = Group(server.url, name, log, 2 + 2 * gone_s)
        until, kill_at = time.monotonic() + 120 + 3 * gone_s, time.monotonic() + 0.5
        try:
            producer.start()
            changer.start()
            if gone_s:
                assert is_begun.wait(60)
                is_longer = gone_s >= RETRY_FOR_S
                with producer.sending if is_longer else nullcontext():
                    server.kill()
                    time.sleep(gone_s)  # the outage
                    server.start()
                is_back.set()
            kills = 1 if gone_s else KILLS
            while changer.is_alive() or producer.is_alive() or client.admin.stats(name)["records"]:
                assert time.monotonic() < until, client.admin.stats_by_slot(name)
                assert not failures, failures
                if time.monotonic() > kill_at and len(group.killed) < kills:
                    killed = len(group.killed)
                    group.kill_busy()
                    if len(group.killed) > killed:
                        kill_at = time.monotonic() + 0.8
                if not changer.is_alive() and producer.sent["key0"] >= FIRST + 10:
                    producer.ended.set()
                time.sleep(0.02)
        finally:
            producer.ended.set()
            group.close()
        assert producer.error is None, producer.error
        assert not failures, failures
        assert client.admin.stats(name)["dead"] == 0
        if not opens_early:
            settings = client.admin.settings(name)
            assert (settings.slots, settings.all_slots) == (8, 16)
            assert settings.layout is not None
            assert settings.layout.resizing is None
    return account(log.read_text().splitlines(), producer.sent, group.killed), len(group.killed)


def test_killed_workers_and_resizers_lose_nothing_and_keep_the_order_of_each_key(
    server: Server, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, killed = run(server, name, tmp_path / "log")

    with capsys.disabled():
        print(f"\nresize 4 -> 16 -> 8: {found}; {killed} workers, 4 resizers killed")
    assert killed == KILLS
    assert not found.lost
    assert not found.violations
    assert found.again, "no kill hit a run"
    assert found.again == found.excused, "handled twice, and nobody was killed"


def test_redis_that_is_gone_for_a_time_in_the_middle_loses_nothing_and_keeps_the_order(
    own_server: Server, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, killed = run(own_server, name, tmp_path / "log", gone_s=GONE_S)

    with capsys.disabled():
        print(f"\nresize, Redis gone for {GONE_S:g} s: {found}; {killed} workers killed")
    assert not found.lost
    assert not found.violations


def test_the_account_sees_slots_that_are_opened_too_early(
    server: Server, name: str, tmp_path: Path
) -> None:
    found, _ = run(server, name, tmp_path / "log", opens_early=True)

    assert found.violations
    assert not found.lost
