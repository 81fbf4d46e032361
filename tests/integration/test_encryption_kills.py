"""Keys are changed while consumers of encrypted bodies are killed: nothing is lost."""

from __future__ import annotations

import base64
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import rmq
from rmq.kernel.core import encryption
from tests.forkserver import Forked
from tests.patience import wait_for
from tests.servers import Server

pytest.importorskip("cryptography")

KEYS, OF_EACH = 6, 40


class Scene:
    """A producer, two consumers that are killed, and the file with the keys of both."""

    def __init__(self, server: Server, client: rmq.Client, name: str, home: Path) -> None:
        self._url, self._name = server.url, name
        self._file, self._log = home / "keys", home / "log"
        self._env = os.environ | {"RMQ_KEYS_FILE": str(self._file)}
        self._keys: dict[str, str] = {}
        self.client, self._ids = client, dict[str, list[rmq.MessageId]]()
        self.topic = client.topic(name, codec=rmq.Encrypted(), retry="immediate")
        self._children: list[Forked] = []
        self.kills = 0

    def write(self) -> None:
        """Write the file as an operator should: no reader sees half of it."""
        new = self._file.with_suffix(".new")
        new.write_text("\n".join(f"{name}:{key}" for name, key in self._keys.items()))
        os.replace(new, self._file)

    def rotate(self, number: int) -> None:
        """Send with a new key."""
        name = f"k{number}"
        self._keys[name] = base64.b64encode(os.urandom(32)).decode()
        self.write()
        bodies = [rmq.Outgoing({"n": number * OF_EACH + n}) for n in range(OF_EACH)]
        self._ids[name] = [result.id for result in self.topic.send_many(bodies)]

    def retire(self, too_early: bool = False) -> dict[str, str] | None:
        """Take away keys that no message has any more; `too_early`: all but the newest.

        Return all keys, in that case.
        """
        kept = dict(self._keys) if too_early else None
        for name in list(self._keys)[:-1]:
            if too_early or not any(self.topic.get(id) for id in self._ids[name]):
                del self._keys[name]
        self.write()
        return kept

    def restore(self, keys: dict[str, str] | None) -> None:
        self._keys = keys or {}
        self.write()

    def start(self) -> None:
        while len(self._children) < 2:
            words = ("tests.integration.encryption_child", self._url, self._name, str(self._log))
            self._children.append(Forked(*words, env=self._env))

    def kill(self) -> None:
        child = self._children.pop(random.randrange(len(self._children)))
        child.kill()
        child.wait()
        self.kills += 1

    def stop(self) -> None:
        while self._children:
            self.kill()

    def missing(self) -> set[int]:
        """Return what no consumer has handled."""
        lines = self._log.read_text().split() if self._log.exists() else []
        return set(range(KEYS * OF_EACH)) - set(map(int, lines))

    def keys(self) -> list[str]:
        return list(self._keys)


@pytest.fixture
def scene(
    server: Server, client: rmq.Client, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Scene]:
    monkeypatch.setenv("RMQ_KEYS_FILE", str(tmp_path / "keys"))
    monkeypatch.setattr(encryption, "ENVIRONMENT", encryption._Environment())
    made = Scene(server, client, name, tmp_path)
    yield made
    made.stop()


def test_nothing_is_lost_while_keys_change_and_consumers_are_killed(
    scene: Scene, name: str
) -> None:
    admin = scene.client.admin
    for number in range(KEYS):
        scene.rotate(number)
        scene.retire()
        scene.start()
        time.sleep(random.uniform(0.02, 0.2))  # whatever a consumer is doing then
        scene.kill()
    scene.start()

    wait_for(lambda: not (scene.retire() or scene.keys()[1:]))
    wait_for(lambda: admin.stats(name)["settled"] == KEYS * OF_EACH)
    assert scene.missing() == set()
    assert admin.stats(name)["dead"] == 0
    assert scene.kills == KEYS


def test_a_key_that_is_taken_away_too_early_is_noticed_and_the_dead_letters_come_back(
    scene: Scene, name: str
) -> None:
    """Negative control."""
    admin = scene.client.admin
    for number in range(KEYS):
        scene.rotate(number)
    kept = scene.retire(too_early=True)
    scene.start()

    wait_for(lambda: admin.stats(name)["dead"] == (KEYS - 1) * OF_EACH)
    wait_for(lambda: admin.stats(name)["settled"] == OF_EACH)
    assert len(scene.missing()) == (KEYS - 1) * OF_EACH

    scene.restore(kept)
    admin.redrive(name)
    wait_for(lambda: admin.stats(name)["settled"] == KEYS * OF_EACH)
    assert scene.missing() == set()
