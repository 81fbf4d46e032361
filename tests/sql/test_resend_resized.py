"""Stubs that are sent, and sent again, while their topic is resized."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

import rmq
from rmq.outbox import Round
from tests.databases import Database
from tests.servers import Server
from tests.sql.lossy import Lossy
from tests.sql.stubs import drain


@pytest.fixture
def scene(database: Database, server: Server, name: str) -> Iterator[Lossy]:
    made = Lossy(database, server, name, slots=4)
    yield made
    made.close()


def lose(scene: Lossy, stubs: list[str]) -> None:
    """Remove the messages of stubs from Redis, whatever their slots."""
    members = {rmq.MessageId.parse(stub).with_slot(0, 0).member for stub in stubs}
    gone = 0
    with scene.server.raw() as raw:
        for keys in scene.topic._context.slots:
            for member in members:
                gone += int(raw.zrem(keys.store, member))
                raw.hdel(keys.records, member)
    assert gone == len(stubs)


def confirm(scene: Lossy, stubs: dict[int, str]) -> list[int]:
    """Receive what there is, and confirm its stubs; the bodies."""
    bodies: list[int] = drain(scene.topic)
    for body in bodies:
        scene.change(stubs[body], status="confirmed")
    return bodies


def test_lost_messages_are_sent_again_once_in_a_topic_that_is_being_resized(scene: Lossy) -> None:
    written = [scene.write(n, slot_basis=str(n % 7)) for n in range(20)]
    assert scene.relay.run_once() == 20
    lose(scene, written[:10])
    late = [scene.write(100 + n, slot_basis=str(n)) for n in range(5)]

    stubs = dict(zip([*range(20), *range(100, 105)], [*written, *late], strict=True))
    found: list[int] = []
    for slots in (16, 8):
        scene.client.admin.topic_resize(scene.name, slots, wait=False)
        if slots == 16:
            assert scene.relay.run_once() == 5
        else:
            scene.age_all()
            assert scene.round().sent == 10
        scene.age_all()
        assert scene.round().sent == 0, "each is in a queue, or consumers have not got past it"
        found += confirm(scene, stubs)
        assert scene.client.admin.topic_resize(scene.name, slots).pending == 0
        found += confirm(scene, stubs)

    assert Counter(found) == Counter([*range(20), *range(100, 105)])
    assert {row.sends for row in scene.rows() if row.id in written[:10]} == {2}
    assert {row.sends for row in scene.rows() if row.id in late} == {1}


def test_stub_whose_message_waits_is_not_sent_again_while_its_topic_is_resized(
    scene: Lossy,
) -> None:
    """The stub's id chooses its slot by the first number of slots."""
    for n in range(20):
        scene.write(n)
    assert scene.relay.run_once() == 20

    scene.client.admin.topic_resize(scene.name, 16, wait=False)
    scene.age_all()

    assert scene.round() == Round(waiting=20)
    assert sorted(drain(scene.topic)) == list(range(20))
