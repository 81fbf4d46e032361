"""Resizes of topics that a server finishes."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest

import rmq
from rmq.features.topic_admin import resize
from rmq.features.topic_admin.service import Resizes
from rmq.http_framework.survey import Survey
from rmq.kernel.topic.slot_choice import slot_of
from tests.forkserver import Forked
from tests.integration.test_topic_change import Cut, Cutting
from tests.server.running import serving, until
from tests.servers import Server as Redis


class Look:
    """A survey, and the service that reads it."""

    def __init__(self, client: rmq.Client, prefix: str) -> None:
        self.survey = Survey(client._transport, prefix)
        self.service = Resizes(client._transport, self.survey)

    def __call__(self) -> int:
        self.survey.run_once()
        return self.service.run_once()


def is_resizing(client: rmq.Client, topic: str) -> bool:
    layout = client.admin.settings(topic).layout
    return layout is not None and layout.resizing is not None


def settle_all(topic: rmq.Topic) -> list[Any]:
    bodies = []
    with topic.consumer() as consumer:
        while batch := consumer.receive(100, wait=0):
            bodies += [delivery.body for delivery in batch]
            consumer.ack(batch)
    return bodies


@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2)])
def test_a_resize_that_died_before_any_of_its_commands_is_finished(
    client: rmq.Client, prefix: str, before: int, after: int
) -> None:
    basis = next(str(n) for n in range(100) if slot_of(str(n), 4) == 3)
    at, is_cut = 0, True
    while is_cut:
        name = f"t{at}"
        topic = client.topic(name, slots=before)
        topic.send("first", slot_basis=basis)
        flow = resize.topic_resize(client.admin._context(name), after, False, False, None)
        try:
            Cutting(client._transport, at).run(flow)
            is_cut = False
        except Cut:
            pass
        look = Look(client, prefix)
        is_begun = client.admin.settings(name).slots == after
        assert look() == 0, "an older message waits"
        topic.send("second", slot_basis=basis)
        assert settle_all(topic) == (["first"] if is_begun else ["first", "second"]), at

        assert look() == is_begun, at

        assert settle_all(topic) == (["second"] if is_begun else []), at
        assert not is_resizing(client, name)
        client.admin.topic_delete(name)
        at += 1
    assert at > 5


def test_the_service_begins_no_resize_and_follows_none_that_others_ended(
    client: rmq.Client, prefix: str
) -> None:
    topic = client.topic("orders", slots=2)
    topic.send(1)
    client.admin.topic_resize("orders", 4, wait=False)
    look = Look(client, prefix)
    look()
    settle_all(topic)
    for slots in (4, 2):
        client.admin.topic_resize("orders", slots)

    look.service.run_once()
    look()

    assert client.admin.settings("orders").slots == 2


def test_a_pass_over_many_messages_goes_on_where_the_last_run_ended(
    client: rmq.Client, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resize, "ROUNDS", 2)
    topic = client.topic("orders", slots=1)
    later = [rmq.Outgoing(n, delay=3600) for n in range(1000)]  # they are not waited for
    topic.send_many(later)
    topic.send("first")
    client.admin.topic_resize("orders", 2, wait=False)
    look = Look(client, prefix)
    look()
    settle_all(topic)

    runs = 1
    while not look.service.run_once():
        runs += 1
        assert runs < 20

    assert runs >= 3, "two pages of about a hundred each"
    assert not is_resizing(client, "orders")


def test_a_topic_that_was_deleted_meanwhile_is_let_go(client: rmq.Client, prefix: str) -> None:
    client.topic("orders", slots=2).send(1)
    client.admin.topic_resize("orders", 4, wait=False)
    look = Look(client, prefix)
    look()
    assert look.service.every_s == 1
    client.admin.topic_delete("orders", force=True)

    assert look() == 0
    assert look.service.every_s == 5


def test_a_server_finishes_what_a_killed_command_began(
    server: Redis, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Survey, "every_s", 0.1)
    monkeypatch.setattr(Resizes, "every_s", 0.1)
    with rmq.Client(server.url) as client:
        topic = client.topic(name, slots=4)
        topic.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(100)])
        command = Forked("tests.faults.resizer", server.url, name, "16")
        until(lambda: client.admin.settings(name).slots == 16, "it has begun")
        command.send_signal(signal.SIGKILL)
        command.wait()
        topic.send_many([rmq.Outgoing(100 + n, slot_basis=str(n)) for n in range(100)])
        bodies = settle_all(topic)
        assert len(bodies) < 200, "newer ones are held"
        time.sleep(0.3)  # nobody goes on with it
        assert is_resizing(client, name)

        with serving(server.url, "rmq"):
            until(lambda: not is_resizing(client, name), "the server finishes it")

        assert sorted(bodies + settle_all(topic)) == list(range(200))
