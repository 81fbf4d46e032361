"""A topic is resized 4 -> 16 -> 8 under load, while consumers and the resizer are killed."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

import rmq
from tests.faults.keyed import Verdict, judge, start
from tests.forkserver import Forked
from tests.servers import Server

KEYS, FIRST, CONSUMERS = 40, 30, 4
SEND_MOST = 60  # messages of each key


class Producer(threading.Thread):
    """Sends the messages of each key in order, until it is told to end."""

    def __init__(self, url: str, name: str) -> None:
        super().__init__(daemon=True)
        self._topic = rmq.Client(url, retry_for=30).topic(name)
        self.sent = {f"key{k}": 0 for k in range(KEYS)}
        self.ids: list[rmq.MessageId] = []
        self.error: BaseException | None = None
        self.ended = threading.Event()

    def send_next(self) -> None:
        out = [rmq.Outgoing([key, n], slot_basis=key) for key, n in self.sent.items()]
        results = self._topic.send_many(out)
        assert [result.status for result in results] == ["stored"] * KEYS
        self.ids += [result.id for result in results]
        for key in self.sent:
            self.sent[key] += 1

    def run(self) -> None:
        try:
            while not self.ended.is_set() and self.sent["key0"] < SEND_MOST:
                self.send_next()
                time.sleep(0.1)
        except BaseException as error:
            self.error = error


def resize(
    client: rmq.Client, url: str, name: str, slots: int, kills: int, restart: threading.Event | None
) -> None:
    """Resize by processes that are killed, and then by one that is not."""
    for at in range(kills):
        resizer = Forked("tests.faults.resizer", url, name, str(slots))
        time.sleep(random.uniform(0.02, 0.3))
        if restart is not None and at == 1:
            restart.set()
        resizer.kill()
        resizer.wait()
    client.admin.topic_resize(name, slots)


def run(
    client: rmq.Client,
    server: Server,
    name: str,
    log: Path,
    *,
    opens_early: bool = False,
    restarts: bool = False,
) -> tuple[Verdict, int]:
    """Resize under load; the verdict, and how many consumers were killed."""
    client.topic(name, slots=4, retry=rmq.Exponential(base=0.05, cap=0.2)).open()
    producer = Producer(server.url, name)
    for _ in range(FIRST):
        producer.send_next()
    log.touch()
    alive = [start(server.url, name, log, True, False) for _ in range(CONSUMERS)]
    killed = 0
    ended, restart = threading.Event(), threading.Event()

    def change() -> None:
        raw = server.raw()
        try:
            for slots in (16, 8):
                if opens_early:
                    client.admin.topic_resize(name, slots, wait=False)
                    for key in list(raw.scan_iter(f"rmq:{{{name}_*}}:slot")):
                        raw.hdel(key, "paused")
                    return
                resize(client, server.url, name, slots, 3, restart if restarts else None)
        except BaseException as error:
            producer.error = error
        finally:
            ended.set()

    changer = threading.Thread(target=change, daemon=True)
    until, kill_at = time.monotonic() + 120, time.monotonic() + 0.5
    try:
        producer.start()
        changer.start()
        while not ended.is_set() or client.admin.stats(name)["records"] or producer.is_alive():
            assert time.monotonic() < until, client.admin.stats_by_slot(name)
            assert producer.error is None, producer.error
            if restart.is_set():  # here: a server dies with the thread that started it
                server.kill()
                server.start()
                restart.clear()
            if time.monotonic() > kill_at and killed < 4:
                alive[killed % CONSUMERS].kill()
                killed += 1
                kill_at = time.monotonic() + 1.5
            for place, one in enumerate(alive):
                if one.poll() is not None:
                    alive[place] = start(server.url, name, log, True, False)
            time.sleep(0.05)
    finally:
        producer.ended.set()
        for one in alive:
            one.kill()
            one.wait()
    assert producer.error is None
    assert len(set(producer.ids)) == len(producer.ids)
    return judge(log.read_text().splitlines(), producer.sent), killed


@pytest.mark.parametrize("restarts", [False, True], ids=["kills", "redis-restarts"])
def test_nothing_is_lost_and_the_order_of_each_key_is_kept(
    own_server: Server, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    restarts: bool,
) -> None:  # fmt: skip
    with rmq.Client(own_server.url, retry_for=30) as client:
        verdict, killed = run(client, own_server, name, tmp_path / "log", restarts=restarts)

        with capsys.disabled():
            print(f"\nresize 4 -> 16 -> 8: {verdict}; {killed} consumers, 6 resizers killed")
        assert not verdict.lost
        assert not verdict.violations
        settings = client.admin.settings(name)
        assert (settings.slots, settings.all_slots) == (8, 16)
        assert settings.layout is not None
        assert settings.layout.resizing is None
        assert client.admin.stats(name)["paused_ms"] == 0


def test_the_checker_sees_slots_that_are_opened_too_early(
    server: Server, client: rmq.Client, name: str, tmp_path: Path
) -> None:
    verdict, _ = run(client, server, name, tmp_path / "log", opens_early=True)

    assert verdict.violations
    assert not verdict.lost
