"""Redis flushed or away, resenders killed, two at once: all comes back, and is counted."""

from __future__ import annotations

import json
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

import rmq
from rmq.ledger import Ledger, exactly_once, metadata as ledger_tables
from rmq.outbox import Relay, Resender, Round
from rmq.sql.outbox import resend_queries
from rmq.sql.outbox.dispatch import Dispatcher
from rmq.sql.outbox.lost import LossDetector
from tests.databases import Database, impatience
from tests.forkserver import Forked
from tests.patience import wait_for
from tests.servers import Server
from tests.sql.lossy import Lossy
from tests.sql.stubs import drain

ROOT = Path(__file__).parents[2]


@pytest.fixture
def scene(database: Database, own_server: Server, name: str) -> Iterator[Lossy]:
    made = Lossy(database, own_server, name)
    yield made
    made.close()


class Child:
    """A resender in a process of its own."""

    def __init__(self, scene: Lossy, gate: Path, mode: str = "run", batch: int = 1000) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115, its owner reads it
        task = {
            "db": scene.database.url(), "redis": scene.server.url, "mode": mode,
            "gate": str(gate), "batch": batch, "max_sends": scene.outbox.max_sends,
        }  # fmt: skip
        self.process = Forked(
            "tests.sql.resend_child", json.dumps(task), stdout=PIPE, stderr=self._errors
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n", self._said()

    def wait(self) -> str:
        """Wait for its end; the last thing it said."""
        assert self.process.wait(60) in (0, -9), self._said()
        assert self.process.stdout is not None
        return self.process.stdout.read().strip()

    def _said(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode()


def sends(scene: Lossy) -> Counter[int]:
    """Return the number of stubs by their number of sends."""
    return Counter(row.sends for row in scene.rows())


# --- Redis flushed -------------------------------------------------------------------------------


def flush(scene: Lossy) -> None:
    with scene.server.raw() as raw:
        raw.flushall()


@pytest.mark.fault("F27")
def test_messages_that_waited_when_redis_was_flushed_all_come_back_once_and_are_counted(
    scene: Lossy,
) -> None:
    for n in range(250):
        scene.write(n, delay=86_400 if n >= 200 else None)
    scene.relay.run_once()
    flush(scene)
    scene.age_all()

    assert scene.round() == Round(sent=250)

    assert sends(scene) == {2: 250}
    assert scene.client.admin.stats(scene.name)["accepted"] == 250
    scene.topic.open()  # it was created anew by the relay
    assert drain(scene.topic) == list(range(200))
    assert scene.client.admin.stats(scene.name)["later"] == 50


@pytest.mark.slow
def test_flushed_again_and_again_each_comes_back_as_often_as_counted_until_it_is_exhausted(
    database: Database, own_server: Server, name: str
) -> None:
    scene = Lossy(database, own_server, name, max_sends=4)
    for n in range(20):
        scene.write(n)
    scene.relay.run_once()
    came: Counter[int] = Counter(drain(scene.topic))  # settled, and not confirmed
    for _ in range(5):
        flush(scene)
        scene.age_all()
        scene.round()
        scene.topic.open()
        came.update(drain(scene.topic))

    assert set(came.values()) == {4}
    assert sends(scene) == {4: 20}
    assert {row.status for row in scene.rows()} == {"exhausted"}
    assert sorted(one.id for one in scene.reported) == sorted(row.id for row in scene.rows())
    scene.close()


@pytest.mark.parametrize("anew", [False, True], ids=["by the relays process", "by another"])
def test_topic_comes_back_with_the_settings_that_it_had(
    database: Database, own_server: Server, name: str, anew: bool
) -> None:
    scene = Lossy(database, own_server, name, slots=4, max_length=1000, lease=77)
    for n in range(8):
        scene.write(n, slot_basis=f"b{n}")
    scene.relay.run_once()
    resender = scene.resender
    if anew:
        resender = scene.resends(client=rmq.Client(own_server.url, retry_for=1))
        assert resender.run_once() == Round()
    flush(scene)
    scene.age_all()

    assert resender.run_once() == Round(sent=8)

    found = scene.client.admin.settings(name)
    assert (found.slots, found.max_length, found.lease_ms) == (4, 1000, 77_000)
    scene.topic.open()
    assert sorted(drain(scene.topic)) == list(range(8))
    scene.close()


@pytest.mark.parametrize("store", ["exactly_once", "Ledger"])
def test_stub_sent_again_to_a_topic_with_other_slots_is_known_by_the_default_key(
    database: Database, own_server: Server, name: str, store: str
) -> None:
    """Its message has another slot in its id, which must not make it another piece of work."""
    scene, ran = Lossy(database, own_server, name, slots=8), []
    claims = Ledger(scene.engine)
    ledger_tables.create_all(scene.engine)
    stub = scene.sent("x", slot_basis="a basis of another slot than 0")

    def consumed(client: rmq.Client) -> None:
        def work(body: Any, connection: Any = None) -> None:
            ran.append(body)

        stands = rmq.idempotent(claims)
        if store == "exactly_once":
            stands = exactly_once(scene.engine)
        client.topic(name).handler(stands(work))
        with rmq.Worker(client, heartbeat="thread"):
            wait_for(lambda: client.admin.stats(name)["settled"], within=30)

    consumed(scene.client)  # and dies before it confirms
    flush(scene)
    with rmq.Client(own_server.url) as other:
        other.topic(name, slots=1, dedup_window=0).open()
        scene.age(stub)
        assert Resender(scene.outbox, scene.engine, other).run_once().sent == 1
        consumed(other)
    assert ran == ["x"]
    claims.close()
    scene.close()


def test_slot_whose_hash_alone_is_gone_is_opened_again_and_keeps_what_waits_in_it(
    scene: Lossy,
) -> None:
    here, gone = scene.sent("here"), scene.lost("gone")
    with scene.server.raw() as raw:
        raw.delete(scene.topic._context.slots[0].slot)

    assert scene.round() == Round(sent=1, waiting=1)

    assert (scene.row(here).sends, scene.row(gone).sends) == (1, 2)


# --- Redis or the database away ------------------------------------------------------------------


def test_nothing_changes_while_redis_is_away_and_it_goes_on_when_it_is_back(scene: Lossy) -> None:
    id = scene.lost()
    before = scene.row(id)
    scene.server.kill()

    with pytest.raises((rmq.Unavailable, rmq.OutcomeUnknown)):
        scene.round()
    after = scene.row(id)
    assert (after.sends, after.resend_at, after.status) == (1, before.resend_at, "unconfirmed")

    scene.server.start()
    assert scene.round() == Round(sent=1)


def test_loop_outlives_an_outage_of_redis_and_stops_when_told(
    scene: Lossy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq.sql.outbox.resend.RETRY_MIN_S", 0.05)
    monkeypatch.setattr("rmq.sql.outbox.resend.ROUND_INTERVAL_S", 0.05)
    id = scene.lost()
    scene.server.kill()
    stop = threading.Event()
    runs = threading.Thread(target=scene.resender.run, args=(stop,), daemon=True)
    runs.start()
    stop.wait(1.5)

    scene.server.start()
    for _ in range(200):
        if scene.row(id).sends == 2:
            break
        stop.wait(0.05)
    stop.set()
    runs.join(10)

    assert scene.row(id).sends == 2
    assert not runs.is_alive()


# --- killed --------------------------------------------------------------------------------------


@pytest.mark.fault("F23")
def test_killed_between_send_and_mark_the_message_is_there_once_and_not_sent_once_more(
    scene: Lossy, tmp_path: Path
) -> None:
    for n in range(20):
        scene.lost(n)
    scene.renumber()
    (tmp_path / "gate").touch()
    child = Child(scene, tmp_path / "gate", "die")
    child.wait()
    assert child.process.returncode == -9
    assert sends(scene) == {1: 20}  # its transaction is gone with it
    assert scene.client.admin.stats(scene.name)["accepted"] == 20

    scene.age_all()  # on SQLite they are put off for a minute while they are sent
    assert scene.round() == Round(waiting=20)

    assert sends(scene) == {1: 20}
    assert drain(scene.topic) == list(range(20))


# --- two at once ---------------------------------------------------------------------------------


def test_two_processes_share_what_was_lost_and_send_nothing_more_often_than_is_counted(
    scene: Lossy, tmp_path: Path
) -> None:
    for n in range(600):
        scene.write(n)
    while scene.relay.run_once():
        pass
    flush(scene)
    scene.age_all()
    children = [Child(scene, tmp_path / "gate", batch=50) for _ in range(2)]

    (tmp_path / "gate").touch()
    told = [int(child.wait()) for child in children]

    assert sends(scene)[2] == sum(told)
    topic = scene.client.topic(scene.name)  # one of them created it anew, with its defaults
    found = drain(topic)
    # Some may have been held: what one sends makes it seem that others' are not yet passed.
    scene.age(*[row.id for row in scene.rows() if row.sends == 1])
    scene.round()
    assert sends(scene) == {2: 600}
    assert scene.client.admin.stats(scene.name)["accepted"] == 600
    assert sorted(found + drain(topic)) == list(range(600))


def _together(scene: Lossy, monkeypatch: pytest.MonkeyPatch) -> list[Round]:
    """Two resenders that have both found the same stubs lost, before either locks one."""
    both = threading.Barrier(2, timeout=30)
    passed = LossDetector._passed

    def met(self: LossDetector, *args: Any) -> Any:
        found = passed(self, *args)
        both.wait()
        return found

    monkeypatch.setattr(LossDetector, "_passed", met)
    rounds: list[Round] = []
    resenders = [scene.resends(client=rmq.Client(scene.server.url)) for _ in range(2)]
    threads = [
        threading.Thread(target=lambda one=one: rounds.append(one.run_once())) for one in resenders
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    return rounds


def test_two_that_found_the_same_stubs_lost_send_each_of_them_once(
    scene: Lossy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(30):
        scene.lost(n)

    rounds = _together(scene, monkeypatch)

    assert sum(one.sent for one in rounds) == 30
    assert sends(scene) == {2: 30}


def test_control_without_the_lock_two_send_every_stub_twice(
    scene: Lossy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resend_queries, "lock", lambda connection, these: list(these))
    for n in range(30):
        scene.lost(n)
    both, send = threading.Barrier(2, timeout=30), Dispatcher.send

    def sends_when_both_have_read(self: Dispatcher, *args: Any) -> Any:
        both.wait()
        return send(self, *args)

    # Else the second may read the count that the first has written, and count on.
    monkeypatch.setattr(Dispatcher, "send", sends_when_both_have_read)

    rounds = _together(scene, monkeypatch)

    assert sum(one.sent for one in rounds) == 60
    # On SQLite, where nothing is locked during the send, the count is compared.
    assert sends(scene) == {2 if scene.database.dialect == "sqlite" else 3: 30}


def during_the_send(scene: Lossy, monkeypatch: pytest.MonkeyPatch, then: Any) -> None:
    """Do something while the resender asks Redis."""
    dispatcher = scene.resender._dispatcher
    real = dispatcher.send

    def send(*arguments: Any) -> Any:
        then()
        return real(*arguments)

    monkeypatch.setattr(dispatcher, "send", send)


def test_orders_are_placed_while_the_resender_waits_for_redis(
    scene: Lossy, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.lost("lost")
    impatient = scene.database.engine(connect_args=impatience(scene.database))

    def place() -> None:
        with impatient.begin() as connection:
            scene.outbox.send(connection, scene.name, "placed meanwhile")

    during_the_send(scene, monkeypatch, place)

    assert scene.round().sent == 1
    assert [row.sends for row in scene.rows()] == [2, 0]


def test_a_resend_that_redis_did_not_answer_leaves_its_stub_as_it_was(
    scene: Lossy, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = scene.lost()
    before = scene.row(id)._mapping["resend_at"], scene.row(id).sends

    def fail() -> None:
        raise rmq.Unavailable("away")

    during_the_send(scene, monkeypatch, fail)

    with pytest.raises(rmq.Unavailable):
        scene.round()
    assert (scene.row(id).resend_at, scene.row(id).sends) == before


def test_relay_and_resender_beside_each_other_send_everything(scene: Lossy) -> None:
    ids = [scene.lost(n) for n in range(20)]
    more = [scene.write(n) for n in range(20, 40)]

    relay = Relay(scene.outbox, scene.database.engine(), scene.client)
    beside = threading.Thread(target=relay.run_once)
    beside.start()
    scene.round()
    beside.join(30)
    for _ in range(3):  # what the relay put behind them may have held some
        drain(scene.topic)
        scene.age(*[id for id in ids if scene.row(id).sends == 1])
        scene.round()

    assert {scene.row(id).sends for id in ids} == {2}
    assert {scene.row(id).sends for id in more} == {1}
