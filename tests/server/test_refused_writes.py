"""A Redis that answers, and refuses all writes because it cannot write to its disk."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress

import pytest
import redis

import rmq
from tests.server.running import ask, serving, until
from tests.servers import Server as Redis


@pytest.fixture
def refusing(server: Redis) -> Iterator[Redis]:
    """A Redis with a topic, whose directory has gone since, and a snapshot failed."""
    own = Redis(server.binary, "--save", "3600 1000000")
    try:
        with rmq.Client(own.url) as client:
            client.topic("orders").open()
        shutil.rmtree(own.dir)
        with own.raw() as raw:

            def has_failed() -> bool:
                with suppress(redis.ResponseError):  # one goes on
                    raw.bgsave()
                return bool(raw.info("persistence")["rdb_last_bgsave_status"] == "err")

            until(has_failed, "a snapshot that fails")
        yield own
    finally:
        own.kill()


def test_a_server_says_that_redis_cannot_write_and_not_that_it_does_not_answer(
    refusing: Redis,
) -> None:
    with serving(refusing.url, "rmq") as running:
        sent = ask(running.url + "/api/v1/topics/orders/messages", "POST", {"body": 1})

        def problems() -> str:
            return " ".join(ask(running.url + "/readyz").body["problems"])

        until(lambda: "refuses all writes" in problems(), "what /readyz says")
        assert "make room" in problems()
        assert ask(running.url + "/livez").status == 200

    assert (sent.status, sent.body["type"]) == (503, "urn:rmq:error:writes-refused")
    assert sent.headers["Retry-After"]
    assert "disk" in sent.body["detail"]
    assert "not answer" not in str(sent.body)


def test_a_client_is_told_of_the_disk_and_not_to_look_for_redis(refusing: Redis) -> None:
    with (
        rmq.Client(refusing.url, retry_for=0) as client,
        pytest.raises(rmq.Unavailable) as raised,
    ):
        client.topic("orders").send(1)

    text = str(raised.value)
    assert "refuses all writes" in text
    assert "Make room on the disk" in text
    assert "cannot be reached" not in text
