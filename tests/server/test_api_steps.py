"""The steps of a handler over HTTP and in the console."""

from __future__ import annotations

import pytest

import rmq
from tests.server.conftest import Ask
from tests.server.console.fetching import fetch
from tests.server.running import serving
from tests.servers import Server as Redis


@pytest.fixture
def id(client: rmq.Client) -> str:
    """A dead letter with a step and a cursor."""
    topic = client.topic("imports")
    id = topic.send(1).id
    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        d.step("<charge>", lambda: {"payment": "p-7"})
        d.save(12)
        d.reject("no")
    return str(id)


def test_a_message_has_its_steps(api: Ask, id: str) -> None:
    steps = api(f"/topics/imports/messages/{id}").body["steps"]

    assert [(each["name"], each["state"], each["value"]["text"]) for each in steps] == [
        ("<charge>", "done", '{"payment": "p-7"}'),
        ("", "cursor", "12"),
    ]


def test_a_redrive_may_be_fresh(api: Ask, client: rmq.Client, id: str) -> None:
    done = api("/topics/imports/dead-letters/redrive", "POST", {"ids": [id], "fresh": True})

    assert (done.status, done.body["sent"]) == (200, 1)
    found = client.topic("imports").get(rmq.MessageId.parse(id))
    assert found is not None
    assert found.steps == ()


def test_the_page_of_a_message_shows_its_steps(server: Redis, prefix: str, id: str) -> None:
    with serving(server.url, prefix) as running:
        page = fetch(f"{running.url}/console/topics/imports/messages/{id}").text

    assert "&lt;charge&gt;" in page
    assert "(saved cursor)" in page
    assert "<charge>" not in page
