"""`rmq claim`: what stands for a business key, and forgetting it; `Admin.claim` under it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

import rmq
from tests.cli.conftest import Shell

KEY = "payment 17\u00fc"


@pytest.fixture
def done(topic: rmq.Topic) -> rmq.MessageId:
    """A message whose work is done under KEY."""
    sent = topic.send({}).id
    with topic.consumer() as consumer:
        for d in rmq.Claims().first(consumer.receive(wait=5), key=lambda body: KEY):
            d.ack()
    return sent


def test_a_consumed_key_is_shown_with_its_message(run: Any, topic: Any, done: Any) -> None:
    shown = run("claim", topic.name, KEY)
    told = json.loads(run("claim", topic.name, KEY, "--json").stdout)

    assert shown.exit_code == 0
    assert [line.split()[0] for line in shown.stdout.splitlines()] == [
        "key", "consumer", "state", "message", "delivery", "since", "kept",
    ]  # fmt: skip
    assert (told["state"], told["message_id"], told["key"]) == ("consumed", str(done), KEY)
    assert 86_000 < told["left_s"] <= 86_400
    assert told["deleted"] is False
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT[\d:]{8}\.\d{3}Z", told["since"])


def test_a_consuming_key_is_shown_while_its_owner_works(
    run: Any, topic: Any, client: rmq.Client
) -> None:
    topic.send({})
    with topic.consumer(lease=30) as consumer:
        (d,) = rmq.Claims("mailer").first(consumer.receive(wait=5), key=lambda body: KEY)
        found = client.admin.claim(topic.name, KEY, consumer="mailer")
        assert run("claim", topic.name, KEY).exit_code == 3
        assert run("claim", topic.name, KEY, "--consumer", "mailer").exit_code == 0

    assert found is not None
    assert (found.state, found.message_id, found.delivery) == ("consuming", d.id, d.fence)
    assert found.left_s is not None
    assert 29 < found.left_s <= 31


def test_a_deleted_key_lets_the_work_be_done_again_and_needs_a_person(
    run: Any, topic: Any, done: Any
) -> None:
    refused = run("claim", topic.name, KEY, "--delete")
    assert (refused.exit_code, "nothing was done" in refused.stderr) == (6, True)
    assert run("claim", topic.name, KEY).exit_code == 0

    assert run("claim", topic.name, KEY, "--delete", "--yes").exit_code == 0

    topic.send({})
    with topic.consumer() as consumer:
        assert len(rmq.Claims().first(consumer.receive(wait=5), key=lambda body: KEY)) == 1


def test_a_missing_claim_and_a_wrong_key_are_reported(
    run: Any, topic: Any, client: rmq.Client
) -> None:
    absent = run("claim", topic.name, "other")
    assert (absent.exit_code, "has no claim on key 'other'" in absent.stderr) == (3, True)
    assert run("claim", f"{topic.name}-none", "k").exit_code != 0
    assert "a key has 1 to 200" in run("claim", topic.name, "x" * 201).stderr
    assert "consumer: " in run("claim", topic.name, "k", "--consumer", "a b").stderr
    assert not client.admin.unclaim(topic.name, "other")


def test_a_value_that_is_no_claim_is_reported_and_can_be_deleted(
    shell: Shell, topic: Any, client: rmq.Client, server: Any
) -> None:
    with server.raw() as raw:
        raw.set(f"rmq:{{{topic.name}_0}}:claim:default:k", "rubbish")
    shown = shell("claim", topic.name, "k")

    assert (shown.returncode, "is not a claim; delete it" in shown.stderr) == (1, True)
    assert client.admin.unclaim(topic.name, "k")
