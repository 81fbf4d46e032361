"""Producers and consumers of offloaded bodies are killed: nothing is lost, nothing is left.

The bodies are encrypted, with a new key after each kill.
"""

from __future__ import annotations

import base64
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import rmq
from tests.forkserver import Forked
from tests.integration.test_offloaded import later, objects, serve
from tests.patience import wait_for
from tests.servers import Server

pytest.importorskip("fsspec")
pytest.importorskip("cryptography")


class Storm:
    """Two producers and two consumers, of which one after the other is killed."""

    def __init__(self, server: Server, client: rmq.Client, name: str, home: Path) -> None:
        self.server, self.client, self.name = server, client, name
        self.url, self._log = f"file://{home}/bodies", home / "log"
        self._keys = home / "keys"
        self._env = os.environ | {"RMQ_STORES": self.url, "RMQ_KEYS_FILE": str(self._keys)}
        self._new_key()
        self.own = rmq.Offloaded(self.url, above=1000)
        self.topic = client.topic(name, codec=self.own, retry="immediate", max_retries=5)
        self.topic.open()
        self._children: list[tuple[str, Forked]] = []

    def _new_key(self) -> None:
        """Encrypt with a new key from now on; no reader sees half of the file."""
        old = self._keys.read_text() if self._keys.exists() else ""
        key = base64.b64encode(os.urandom(32)).decode()
        new = self._keys.with_suffix(".new")
        new.write_text(f"{old}k{old.count(':')}:{key}\n")
        os.replace(new, self._keys)

    def start(self, *roles: str) -> None:
        for role in roles:
            words = "tests.integration.offloaded_child", role, self.server.url, self.name
            self._children.append((role, Forked(*words, str(self._log), env=self._env)))

    def kill(self, at: int) -> str:
        role, child = self._children.pop(at)
        child.kill()
        child.wait()
        return role

    def run(self, seconds: float, consumer: str) -> int:
        """Kill one child after the other, and start another in its place; return how many.

        A busy machine gets more time: until 30 messages are sent.
        """
        self.start("producer", "producer", consumer, consumer)
        wait_for(lambda: self._log.exists() and self.told("sent") and self.told("whole"))
        until, kills = time.monotonic() + seconds, 0
        while time.monotonic() < until or len(self.told("sent")) < 30:
            time.sleep(random.uniform(0.1, 0.5))  # whatever a child is doing then
            self.start(self.kill(random.randrange(4)))
            self._new_key()
            kills += 1
        for at in (3, 2, 1, 0):
            if self._children[at][0] == "producer":
                self.kill(at)
        return kills

    def stop(self) -> None:
        while self._children:
            self.kill(0)

    def settle(self) -> None:
        """Wait until nothing waits, and nothing is in flight."""

        def is_settled() -> bool:
            stats = self.client.admin.stats(self.name)
            return stats["records"] == stats["dead"]

        wait_for(is_settled, 60)
        self.stop()

    def told(self, word: str) -> set[str]:
        lines = [line.split() for line in self._log.read_text().splitlines()]
        return {line[1] for line in lines if line[0] == word}

    def missing(self) -> list[str]:
        """Return the dead letters whose objects are missing."""
        letters = self.client.admin.peek(self.name, 1000, queue="dead")
        errors = [letter.failure.error for letter in letters if letter.failure]
        return [error for error in errors if "is missing" in error]


@pytest.fixture
def storm(ours: Server, name: str, tmp_path: Path) -> Iterator[Storm]:
    """A storm on its own server: a sweep reads all topics, also broken ones of other tests."""
    with rmq.Client(ours.url) as client:
        made = Storm(ours, client, name, tmp_path)
        yield made
        made.stop()


@pytest.mark.parametrize("seconds", [1.5, pytest.param(60.0, marks=pytest.mark.slow)])
def test_nothing_is_lost_and_nothing_is_left_in_the_store(
    storm: Storm, name: str, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = storm.run(seconds, "consumer")
    storm.settle()
    sent, whole = storm.told("sent"), storm.told("whole")
    left = set(objects(storm.url))
    print(f"{kills} kills, {len(sent)} sent, {len(whole)} received, {len(left)} objects left")

    assert len(sent) > 20
    assert sent <= whole
    assert storm.told("damaged") == set()
    assert storm.missing() == []

    storm.client.admin.purge(name, queue="dead", keep=0)
    serve(storm.server, name)
    later(monkeypatch)
    swept = storm.client.admin.sweep_offloaded(name)
    print(f"{swept.objects} swept")
    assert objects(storm.url) == []
    assert swept.objects <= 4 * kills  # of sends that were killed before they landed


@pytest.mark.slow  # a control that needs many kills; the storm above is not slow
def test_an_object_that_is_removed_before_its_ack_is_noticed(storm: Storm, name: str) -> None:
    """Negative control. A kill has to come between the removal and the ack: it may take tries."""
    for _ in range(5):
        storm.run(0.5, "early")
        until = time.monotonic() + 15  # consumers go on: leases of killed ones have to end
        while time.monotonic() < until:
            if storm.missing():
                return
            time.sleep(0.05)
        storm.stop()
    raise AssertionError("no message came again without its object")
