"""Stubs at their limit, and who is told of them."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

import rmq
from rmq.outbox import Exhausted, Round, Webhook
from rmq.sql.outbox import notify
from tests.databases import Database
from tests.servers import Server
from tests.sql.lossy import MINUTE, Lossy


@pytest.fixture
def scene(database: Database, server: Server, name: str) -> Iterator[Lossy]:
    made = Lossy(database, server, name, max_sends=2)
    yield made
    made.close()


def exhausted(scene: Lossy, body: Any = "x") -> str:
    """A stub that was lost as often as it may be, and not yet looked at."""
    id = scene.lost(body)
    scene.change(id, sends=2)
    return id


def test_stub_is_exhausted_when_it_is_lost_once_more_than_it_may_be_sent(scene: Lossy) -> None:
    id = scene.lost()
    assert scene.round() == Round(sent=1)
    assert scene.row(id).sends == 2
    scene.age(id)
    assert scene.round() == Round(waiting=1)
    scene.lose(id)
    assert scene.round() == Round()
    scene.age(id)

    assert scene.round() == Round(exhausted=1, reported=1)

    row = scene.row(id)
    assert (row.status, row.sends, row.error) == ("exhausted", 2, "sent 2 times, never confirmed")
    assert row.notified is not None
    assert scene.place(id) is None
    assert scene.round() == Round()


def test_hook_gets_id_topic_sends_created_and_error_and_not_the_body(scene: Lossy) -> None:
    id = exhausted(scene, {"card": "4111"})

    scene.round()

    (told,) = scene.reported
    row = scene.row(id)
    created = datetime.fromtimestamp(row.created / 1000, UTC)
    assert told == Exhausted(id, scene.name, 2, created, "sent 2 times, never confirmed")
    assert "4111" not in repr(told)


def test_hook_that_fails_is_tried_again_in_the_next_round_and_once_it_succeeds_never_more(
    scene: Lossy, caplog: pytest.LogCaptureFixture
) -> None:
    id = exhausted(scene)
    calls: list[str] = []

    def hook(told: Exhausted) -> None:
        calls.append(told.id)
        if len(calls) < 3:
            raise OSError("no route")

    resender = scene.resends(hook)
    with caplog.at_level(logging.WARNING, "rmq.outbox"):
        assert resender.run_once() == Round(exhausted=1)
    assert "no route" in caplog.text
    assert id in caplog.text
    assert scene.row(id).notified is None

    rounds = [resender.run_once() for _ in range(4)]

    assert rounds == [Round(), Round(reported=1), Round(), Round()]
    assert calls == [id] * 3


def test_stub_for_which_the_hook_always_fails_does_not_hide_the_others(scene: Lossy) -> None:
    bad = exhausted(scene)
    scene.round()
    scene.change(bad, notified=None)
    others = [exhausted(scene) for _ in range(3)]
    told: list[str] = []

    def hook(one: Exhausted) -> None:
        if one.id == bad:
            raise ValueError("it does not like this one")
        told.append(one.id)

    resender = scene.resends(hook)
    for _ in range(3):
        resender.run_once()

    assert sorted(told) == sorted(others)
    assert scene.row(bad).notified is None


def test_two_resenders_tell_of_a_stub_once_while_the_first_is_at_it(scene: Lossy) -> None:
    exhausted(scene)
    inside: list[Round] = []
    second = scene.resends()

    first = scene.resends(lambda told: inside.append(second.run_once()))

    assert first.run_once() == Round(exhausted=1, reported=1)
    assert inside == [Round()]
    assert scene.reported == []


def test_resender_that_dies_while_it_tells_leaves_it_to_another_after_a_while(
    scene: Lossy,
) -> None:
    id = exhausted(scene)

    def dies(told: Exhausted) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scene.resends(dies).run_once()
    assert scene.round() == Round()
    row = scene.row(id)
    assert 0 < row.resend_at - row.now <= notify.REPORT_MS == MINUTE
    scene.age(id)

    assert scene.round() == Round(reported=1)


def test_stub_that_was_never_sent_because_it_never_can_be_is_reported_at_once(scene: Lossy) -> None:
    narrow = scene.client.topic(scene.name + "-narrow", max_body=1024)
    narrow.open()
    with scene.engine.begin() as connection:
        id = str(scene.outbox.send(connection, narrow.name, "x" * 2000))
    assert scene.relay.run_once() == 1

    assert scene.round() == Round(reported=1)

    assert scene.reported[0].id == id
    assert scene.reported[0].sends == 0
    assert "max_body" in scene.reported[0].error


def test_stub_that_is_confirmed_meanwhile_is_not_told(scene: Lossy) -> None:
    id = exhausted(scene)
    scene.resends(lambda told: 1 / 0).run_once()
    scene.change(id, status="confirmed")

    assert scene.round() == Round()
    assert scene.reported == []


def test_without_a_hook_it_is_an_error_on_the_logger_rmq(
    scene: Lossy, caplog: pytest.LogCaptureFixture
) -> None:
    id = exhausted(scene, {"card": "4111"})
    resender = rmq.outbox.Resender(scene.outbox, scene.engine, scene.client)

    with caplog.at_level(logging.ERROR, "rmq"):
        assert resender.run_once().reported == 1

    (record,) = [one for one in caplog.records if one.name == "rmq"]
    assert record.levelno == logging.ERROR
    assert f"rmq outbox resend {id}" in record.getMessage()
    assert "4111" not in caplog.text


# --- a webhook, and a real server that it posts to -----------------------------------------------


class Receiver:
    """An HTTP server that keeps what it is sent, and answers what it is told to."""

    def __init__(self) -> None:
        self.got: list[tuple[str, dict[str, str], bytes]] = []
        self.answers: list[int] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size = int(self.headers["Content-Length"])
                outer.got.append((self.path, dict(self.headers), self.rfile.read(size)))
                self.send_response(outer.answers.pop(0) if outer.answers else 204)
                self.send_header("Location", "/elsewhere")
                self.end_headers()

            def do_GET(self) -> None:
                outer.got.append((self.path, {}, b"GET"))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args: Any) -> None: ...

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.server.shutdown()
    made.server.server_close()


TOLD = Exhausted("0" * 26, "orders", 16, datetime(2030, 1, 31, 9, tzinfo=UTC), "why: \u00e9")


def test_webhook_posts_json_with_the_headers_that_it_was_given(receiver: Receiver) -> None:
    Webhook(receiver.url + "/hook?k=s3cret", {"Authorization": "Bearer t0ken"})(TOLD)

    ((path, headers, body),) = receiver.got
    assert path == "/hook?k=s3cret"
    assert headers["Authorization"] == "Bearer t0ken"
    assert headers["Content-Type"] == "application/json"
    assert json.loads(body) == {
        "id": "0" * 26, "topic": "orders", "sends": 16, "created": "2030-01-31T09:00:00.000Z",
        "error": "why: \u00e9",
    }  # fmt: skip


@pytest.mark.parametrize("status", [301, 302, 307, 400, 404, 500, 503])
def test_webhook_takes_every_status_but_success_for_a_failure_and_follows_nothing(
    receiver: Receiver, status: int
) -> None:
    receiver.answers = [status]

    with pytest.raises(OSError, match=f"answered {status}") as caught:
        Webhook(receiver.url + "/s3cret")(TOLD)

    assert "s3cret" not in str(caught.value)
    assert len(receiver.got) == 1


def test_webhook_that_answers_with_an_error_is_posted_to_again_in_the_next_round(
    scene: Lossy, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    id = exhausted(scene, {"card": "4111"})
    receiver.answers = [500]
    resender = scene.resends(Webhook(receiver.url + "/s3cret"))

    with caplog.at_level(logging.WARNING):
        rounds = [resender.run_once() for _ in range(3)]

    assert rounds == [Round(exhausted=1), Round(reported=1), Round()]
    assert [json.loads(body)["id"] for _, _, body in receiver.got] == [id, id]
    assert b"4111" not in b"".join(body for _, _, body in receiver.got)
    assert "answered 500" in caplog.text
    assert "s3cret" not in caplog.text


def test_webhook_that_nobody_listens_to_or_that_never_answers_fails_in_time() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        port = deaf.getsockname()[1]
        with pytest.raises(OSError, match=f"http://127.0.0.1:{port}: .*refused"):
            Webhook(f"http://127.0.0.1:{port}/s3cret")(TOLD)
        deaf.listen()
        with pytest.raises(OSError, match="timed out"):
            Webhook(f"http://127.0.0.1:{port}/s3cret", timeout=0.2)(TOLD)
