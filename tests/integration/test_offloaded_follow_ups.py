"""Follow-ups with offloaded bodies: their objects live as long as a message needs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rmq
from rmq.features.offloaded import flows as sweeping
from rmq.features.offloaded.service import Offloading
from rmq.http_framework.survey import Survey
from rmq.kernel.consumer.settle import Settling
from tests.integration.driven import both_clients
from tests.integration.objects import objects
from tests.integration.test_offloaded import BIG, later
from tests.patience import wait_for
from tests.servers import Server


@pytest.fixture
def url(name: str) -> str:
    return f"memory://{name}"


@both_clients
@pytest.mark.parametrize("slots", [1, 2])  # an ack of deliveries of two slots has two calls
def test_a_large_follow_up_is_in_the_store_until_it_is_settled(
    api: Any, name: str, url: str, server: Server, slots: int
) -> None:
    source = api.topic(name, slots=slots)
    films = api.topic(f"{name}-films", codec=rmq.Offloaded(url, above=64))
    films.open()
    for basis in "ad":
        source.send(basis, slot_basis=basis)
    with source.consumer() as consumer:
        kept = consumer.receive(1, wait=5)[0]
        lost = consumer.receive(1, wait=5)[0]
        assert (kept.slot == lost.slot) is (slots == 1)
        for delivery in (kept, lost):
            delivery.then(films, BIG)
            delivery.then(films, {"n": 1})
        assert len(objects(url)) == 2
        with server.raw() as raw:
            raw.zrem(f"rmq:{{{name}_{lost.slot}}}:prepare", lost.id.member)
        assert [delivery.id for delivery in consumer.ack([kept, lost])] == [lost.id]

    assert len(objects(url)) == 1, "the object of the lost delivery is removed"
    with films.consumer() as consumer:
        batch = consumer.receive(3, wait=5)
        assert sorted((d.body for d in batch), key=str) == [BIG, {"n": 1}]
        consumer.ack(batch)
    wait_for(lambda: objects(url) == [], "the object is removed")


def test_after_a_repeated_ack_the_body_stays_because_the_first_may_have_sent_it(
    api: Any, name: str, url: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Settling, "is_repeat", True)
    source, films = api.topic(name), api.topic(f"{name}-films", codec=rmq.Offloaded(url, above=64))
    films.open()
    source.send(1)
    with source.consumer() as consumer:
        (delivery,) = consumer.receive(wait=5)
        delivery.then(films, BIG)
        with server.raw() as raw:
            raw.delete(f"rmq:{{{name}_0}}:prepare")
        assert len(consumer.ack([delivery])) == 1

    assert len(objects(url)) == 1


@pytest.mark.parametrize("verb", ["nack", "reject", "release"])
def test_the_body_of_a_follow_up_that_is_not_sent_is_removed(
    api: Any, name: str, url: str, verb: str
) -> None:
    source, films = api.topic(name), api.topic(f"{name}-films", codec=rmq.Offloaded(url, above=64))
    films.open()
    source.send(1)
    with source.consumer() as consumer:
        (delivery,) = consumer.receive(wait=5)
        delivery.then(films, BIG)
        assert len(objects(url)) == 1
        getattr(delivery, verb)(*(["no"] if verb == "reject" else []))

    assert objects(url) == []


@pytest.mark.parametrize("reads_pending", [True, False], ids=["sweep", "control"])
def test_a_pending_follow_up_keeps_its_body_from_a_sweep_and_as_a_dead_letter(
    server: Server, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads_pending: bool
) -> None:
    url = f"file://{tmp_path}/bodies"
    later(monkeypatch)
    if not reads_pending:
        monkeypatch.setattr(sweeping, "_of_pending", lambda member: None)
    with rmq.Client(server.url, prefix=name) as client:
        films = client.topic("films", codec=rmq.Offloaded(url, above=64))
        films.open()
        client.topic("source").send(1)
        client.admin.topic_pause("films", verb="send")
        with client.topic("source").consumer() as consumer:
            (delivery,) = consumer.receive(wait=5)
            delivery.ack(then=[(films, rmq.Outgoing(BIG))])
        assert client.admin.stats("source")["pending"] == 1

        assert client.admin.sweep_offloaded("films").objects == (0 if reads_pending else 1)

        if reads_pending:
            client.admin.topic_delete("films", force=True)
            client.admin.pending_send("source")
            assert client.admin.stats("source")["dead"] == 1
            assert len(objects(url)) == 1
            client.admin.purge("source", "dead", keep=0)
            survey = Survey(client._transport, name)
            survey.run_once()
            assert Offloading(client._transport, survey).run_once() == 1
            assert objects(url) == []
