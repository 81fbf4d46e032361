"""A topic is resized 4 -> 16 -> 8 under load of worker processes, which are killed, as Redis is.

`RMQ_TEST_SEED` plays a seed again; many: `python -m tests.faults.seeds --storm resize-workers`.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import psutil
import pytest

import rmq
from tests.faults.order_account import Account, account
from tests.faults.storm import END_S, Played, Watch, insist, seeded
from tests.faults.test_resize import FIRST, JOIN_S, Producer, records, resize
from tests.forkserver import Forked
from tests.patience import wait_for
from tests.servers import Server

WORKERS, KILLS = 4, 4
GONE_S = 30.0 if os.environ.get("RMQ_TEST_LONG") else 3.0
RETRY_FOR_S = 30.0  # of the producer, at most
LEASE_S = 4.0  # nobody loses one, but by a kill
KILL_EACH_S = 0.8
LOOK_S = 0.02
RESIZER_KILLS = 2  # at each of two resizes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(END_S + 60)]


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
        """Stop each worker for a moment, and kill the first that is in the middle of a run."""
        for place, victim in enumerate(self._alive):
            victim.send_signal(signal.SIGSTOP)
            process = psutil.Process(victim.pid)
            wait_for(lambda one=process: one.status() == psutil.STATUS_STOPPED, "it stops")
            lines = [line.split() for line in self._done.read_text().splitlines()]
            words = Counter(word for word, *_, pid in lines if int(pid) == victim.pid)
            if words["begin"] > words["done"]:
                victim.kill()
                self.killed.add(victim.pid)
                victim.wait()
                self._alive[place] = self._start()
                return
            victim.send_signal(signal.SIGCONT)

    def stderr_text(self) -> str:
        return self._log.read_text()[-4000:]

    def close(self) -> None:
        for worker in self._alive:
            worker.kill()
            worker.wait()


def run(
    server: Server, name: str, log: Path, rng: random.Random, *, opens_early: bool = False,
    gone_s: float = 0.0,
) -> tuple[Account, int]:  # fmt: skip
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
                        with server.raw() as raw:
                            for key in list(raw.scan_iter(f"rmq:{{{name}_*}}:slot")):
                                raw.hdel(key, "paused")
                        return
                    if gone_s:
                        command = Forked("tests.faults.resizer", server.url, name, str(slots))
                        assert is_back.wait(gone_s + 60)
                        command.wait(END_S)  # it may have given up
                    resize(client, server.url, name, slots, RESIZER_KILLS, None, rng)
            except BaseException as error:
                failures.append(error)

        changer = threading.Thread(target=change, daemon=True)
        group = Group(server.url, name, log, LEASE_S + 2 * gone_s)
        kill_at = time.monotonic() + KILL_EACH_S
        watch = Watch(lambda: (client.admin.stats_by_slot(name), group.stderr_text()))
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
            while (changer.is_alive() or producer.is_alive(), left := records(client, name)) != (
                False, 0,
            ):  # fmt: skip
                insist(not failures, failures)
                watch.look(
                    changer.is_alive(), len(producer.ids), len(group.killed), log.stat().st_size,
                    left,
                )  # fmt: skip
                if time.monotonic() > kill_at and len(group.killed) < kills:
                    killed = len(group.killed)
                    group.kill_busy()
                    if len(group.killed) > killed:
                        kill_at = time.monotonic() + KILL_EACH_S
                is_enough = producer.sent["key0"] >= FIRST + 10
                if not changer.is_alive() and is_enough and len(group.killed) == kills:
                    producer.ended.set()
                time.sleep(LOOK_S)
        finally:
            producer.ended.set()
            is_back.set()
            group.close()
            for thread in (producer, changer):
                if thread.ident is not None:
                    thread.join(JOIN_S)
            producer.client.close()
        insist(producer.error is None, producer.error)
        insist(not failures, failures)
        insist(client.admin.stats(name)["dead"] == 0, "there are dead letters")
        if not opens_early:
            settings = client.admin.settings(name)
            insist((settings.slots, settings.all_slots) == (8, 16), settings)
            insist(settings.layout is not None and settings.layout.resizing is None, settings)
    return account(log.read_text().splitlines(), producer.sent, group.killed), len(group.killed)


def played(server: Server, name: str, log: Path, rng: random.Random, gone_s: float = 0.0) -> Played:
    """Resize under load, and insist that nothing is lost and the order of each key is kept."""
    found, killed = run(server, name, log, rng, gone_s=gone_s)
    told = f"{found}; {killed} workers, {2 * RESIZER_KILLS} resizers killed"
    insist(not found.lost and not found.violations, (told, found))
    if not gone_s:
        insist(found.again or not killed, f"no kill hit a run: {told}")
        insist(found.again == found.excused, f"handled twice, and nobody was killed: {told}")
    return Played(told, Counter({"kill worker": (1 if gone_s else KILLS) - killed}))


def played_by_seed(server: Server, name: str, log: Path, gone_s: float = 0.0) -> None:
    seed, rng = seeded()
    try:
        found = played(server, name, log, rng, gone_s)
    except AssertionError as error:
        raise AssertionError(f"RMQ_TEST_SEED={seed}: {error}") from error
    print(f"resize 4 -> 16 -> 8, seed {seed}, Redis gone for {gone_s:g} s: {found.figures}")
    assert not +found.dropped, f"RMQ_TEST_SEED={seed}: {found}"


def test_killed_workers_and_resizers_lose_nothing_and_keep_the_order_of_each_key(
    server: Server, name: str, tmp_path: Path
) -> None:
    played_by_seed(server, name, tmp_path / "log")


def test_redis_that_is_gone_for_a_time_in_the_middle_loses_nothing_and_keeps_the_order(
    own_server: Server, name: str, tmp_path: Path
) -> None:
    played_by_seed(own_server, name, tmp_path / "log", GONE_S)


def test_the_account_sees_slots_that_are_opened_too_early(
    server: Server, name: str, tmp_path: Path
) -> None:
    seed, rng = seeded()
    found, _ = run(server, name, tmp_path / "log", rng, opens_early=True)

    assert found.violations, f"RMQ_TEST_SEED={seed}"
    assert not found.lost, f"RMQ_TEST_SEED={seed}"
