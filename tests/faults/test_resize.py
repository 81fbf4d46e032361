"""A topic is resized 4 -> 16 -> 8 under load, while consumers and the resizer are killed.

`RMQ_TEST_SEED` plays a seed again; many seeds: `python -m tests.faults.seeds --storm resize`.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

import rmq
from tests.faults.keyed import start
from tests.faults.order_account import Account, account
from tests.faults.storm import END_S, LOOK_S, Played, Watch, insist, seeded
from tests.forkserver import Forked
from tests.servers import Server

KEYS, FIRST, CONSUMERS = 20, 30, 4
SEND_LEAST, SEND_MOST = 40, 100  # messages of each key: until all kills were done, but so many
KILLS, KILL_EACH_S = 4, 0.6
RESIZER_KILLS = 3  # at each of two resizes
JOIN_S = 60.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(END_S + 60)]


class Producer(threading.Thread):
    """Sends the messages of each key in order, until it is told to end."""

    def __init__(self, url: str, name: str) -> None:
        super().__init__(daemon=True)
        self.client = rmq.Client(url, retry_for=30)
        self._topic = self.client.topic(name)
        self.sent = {f"key{k}": 0 for k in range(KEYS)}
        self.ids: list[rmq.MessageId] = []
        self.error: BaseException | None = None
        self.ended = threading.Event()

    def send_next(self) -> None:
        out = [rmq.Outgoing([key, n], slot_basis=key) for key, n in self.sent.items()]
        results = self._topic.send_many(out)
        insist([result.status for result in results] == ["stored"] * KEYS, results)
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
    client: rmq.Client, url: str, name: str, slots: int, kills: int,
    restart: threading.Event | None, rng: random.Random,
) -> None:  # fmt: skip
    """Resize by processes that are killed, and then by one that is not."""
    for at in range(kills):
        resizer = Forked("tests.faults.resizer", url, name, str(slots))
        time.sleep(rng.uniform(0.02, 0.3))
        if restart is not None and at == 1:
            restart.set()
        resizer.kill()
        resizer.wait()
    client.admin.topic_resize(name, slots)


def records(client: rmq.Client, name: str) -> int | None:
    """How many messages a topic holds.

    None: a resizer has died, or been slow, before all slots were there. Whoever uses the topic
    makes them; a caller that only reads is told that one is missing.
    """
    try:
        return client.admin.stats(name)["records"]
    except rmq.TopicVanished:
        return None


def run(
    client: rmq.Client,
    server: Server,
    name: str,
    log: Path,
    rng: random.Random,
    *,
    opens_early: bool = False,
    restarts: bool = False,
) -> tuple[Account, int]:
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
                at = restart if restarts else None
                resize(client, server.url, name, slots, RESIZER_KILLS, at, rng)
        except BaseException as error:
            producer.error = error
        finally:
            ended.set()

    changer = threading.Thread(target=change, daemon=True)
    watch = Watch(lambda: (client.admin.stats_by_slot(name), log.with_suffix(".err").read_text()))
    kill_at = time.monotonic() + KILL_EACH_S
    try:
        producer.start()
        changer.start()
        # In this order: what is sent last is counted.
        while (not ended.is_set() or producer.is_alive(), left := records(client, name)) != (
            False, 0,
        ):  # fmt: skip
            insist(producer.error is None, producer.error)
            watch.look(ended.is_set(), len(producer.ids), killed, log.stat().st_size, left)
            if ended.is_set() and killed == KILLS and producer.sent["key0"] >= SEND_LEAST:
                producer.ended.set()
            if restart.is_set():  # here: a server dies with the thread that started it
                server.kill()
                server.start()
                restart.clear()
            if time.monotonic() > kill_at and killed < KILLS:
                alive[killed % CONSUMERS].kill()
                killed += 1
                kill_at = time.monotonic() + KILL_EACH_S
            for place, one in enumerate(alive):
                if one.poll() is not None:
                    alive[place] = start(server.url, name, log, True, False)
            time.sleep(LOOK_S)
    finally:
        producer.ended.set()
        for one in alive:
            one.kill()
            one.wait()
        for thread in (producer, changer):
            if thread.ident is not None:
                thread.join(JOIN_S)
        producer.client.close()
    insist(producer.error is None, producer.error)
    insist(len(set(producer.ids)) == len(producer.ids), "an id was given twice")
    return account(log.read_text().splitlines(), producer.sent, back=1), killed


def played(
    client: rmq.Client, server: Server, name: str, log: Path, rng: random.Random, restarts: bool
) -> Played:
    """Resize under load, and insist that nothing is lost and the order of each key is kept."""
    verdict, killed = run(client, server, name, log, rng, restarts=restarts)
    told = (
        f"resize 4 -> 16 -> 8: {verdict}; {killed} consumers, {2 * RESIZER_KILLS} resizers killed"
    )
    insist(not verdict.lost and not verdict.violations, (told, verdict))
    settings = client.admin.settings(name)
    insist((settings.slots, settings.all_slots) == (8, 16), settings)
    insist(settings.layout is not None and settings.layout.resizing is None, settings)
    insist(client.admin.stats(name)["paused_ms"] == 0, "it is still paused")
    return Played(told, Counter({"kill consumer": KILLS - killed}))


@pytest.mark.parametrize("restarts", [False, True], ids=["kills", "redis-restarts"])
def test_nothing_is_lost_and_the_order_of_each_key_is_kept(
    own_server: Server, name: str, tmp_path: Path, restarts: bool
) -> None:
    seed, rng = seeded()
    with rmq.Client(own_server.url, retry_for=30) as client:
        try:
            found = played(client, own_server, name, tmp_path / "log", rng, restarts)
        except AssertionError as error:
            raise AssertionError(f"RMQ_TEST_SEED={seed}: {error}") from error
    print(f"resize 4 -> 16 -> 8, seed {seed}: {found.figures}")
    assert not +found.dropped, f"RMQ_TEST_SEED={seed}: {found}"


def test_the_checker_sees_slots_that_are_opened_too_early(
    server: Server, client: rmq.Client, name: str, tmp_path: Path
) -> None:
    seed, rng = seeded()
    verdict, _ = run(client, server, name, tmp_path / "log", rng, opens_early=True)

    assert verdict.violations, f"RMQ_TEST_SEED={seed}"
    assert not verdict.lost, f"RMQ_TEST_SEED={seed}"
