"""Logging: one event for each message, and the message's id in what its handler logs, no other."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import rmq
from rmq import Outgoing
from rmq.interceptors import JsonFormatter, Logging, MessageFilter, logs
from rmq.kernel.core.metrics import EVENTS
from tests.integration.driven import both_clients
from tests.integration.working import handle, work
from tests.servers import Server

STYLES = ("plain", "async")
shop = logging.getLogger("shop.orders")


class Kept(logging.Handler):
    """A handler of the program's: it has our filter, and keeps what passes."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.addFilter(MessageFilter())

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def of(self, logger: str) -> list[logging.LogRecord]:
        return [one for one in self.records if one.name == logger]

    def events(self) -> list[dict[str, Any]]:
        """The fields of each event of ours."""
        usual = {*vars(logging.LogRecord("", 0, "", 0, "", (), None)), "message", "taskName"}
        return [
            {name: value for name, value in vars(one).items() if name not in usual}
            for one in self.of("rmq.messages")
        ]


@pytest.fixture
def kept() -> Iterator[Kept]:
    made = Kept()
    root = logging.getLogger()
    levels = {log: log.level for log in (shop, logs.log)}
    root.addHandler(made)
    for log in levels:
        log.setLevel(logging.INFO)
    yield made
    root.removeHandler(made)
    for log, level in levels.items():
        log.setLevel(level)


# --- events --------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", STYLES)
def test_each_send_and_each_run_is_one_event_with_the_fields_of_the_catalogue(
    link: Any, kept: Kept, name: str, style: str
) -> None:
    client = link(Logging())
    topic = client.topic(name, max_retries=1, retry="immediate")

    def run(body: str, d: Any) -> None:
        if body == "bad":
            raise ValueError("no such order")

    handle(topic, style, run, concurrency=1)
    good, bad = topic.send("good"), topic.send("bad")
    with pytest.raises(rmq.EncodeError):
        topic.send(object())
    work(client, lambda: len(kept.of("rmq.messages")) >= 6)

    catalogue = {event.name: event for event in EVENTS}
    found = kept.events()
    for fields, record in zip(found, kept.of("rmq.messages"), strict=True):
        event = catalogue[fields["event"]]
        assert record.levelname == event.level
        beside = {"event", "attempt", "batch", "message_id"}  # what the filter adds
        assert set(fields) <= {*event.fields, *beside}
    assert [one["event"] for one in found[:3]] == ["sent", "sent", "not_sent"]
    assert found[0] | {"batch": 0} == {
        "event": "sent", "topic": name, "message_id": str(good.id), "status": "stored",
        "slot": 0, "attempt": 0, "batch": 0,
    }  # fmt: skip
    assert (found[2]["error_type"], found[2]["message_id"]) == ("EncodeError", "")
    handled = [one for one in found if one["event"] == "handled"]
    assert [(one["message_id"], one["verb"], one["attempt"]) for one in handled] == [
        (str(good.id), "ack", 1)
    ]
    assert 0 <= handled[0]["late_seconds"] < 10
    assert 0 <= handled[0]["seconds"] < 10
    failed = [one for one in found if one["event"] == "failed"]
    assert [
        (one["message_id"], one["verb"], one["attempt"], one["error_type"], one["error"])
        for one in failed
    ] == [
        (str(bad.id), "nack", 1, "ValueError", "no such order"),
        (str(bad.id), "nack", 2, "ValueError", "no such order"),
    ]
    assert "late_seconds" not in failed[1], "a retry's own due time is not known"
    assert kept.of("rmq.messages")[0].getMessage() == f"sent to {name}: {good.id} stored, slot 0"


def test_every_event_of_the_catalogue_is_emitted_here() -> None:
    assert {event.name for event in EVENTS} == {"sent", "not_sent", "handled", "failed"}


def test_without_it_there_are_no_events_and_records_carry_no_message(
    link: Any, kept: Kept, name: str
) -> None:
    client = link()
    topic = client.topic(name)
    handle(topic, "plain", lambda body, d: shop.info("working"))

    topic.send("x")
    work(client, lambda: kept.of("shop.orders"))

    assert kept.of("rmq.messages") == []
    (record,) = kept.of("shop.orders")
    assert [getattr(record, field) for field in ("message_id", "topic", "attempt", "batch")] == [
        "", "", 0, 0,
    ]  # fmt: skip


def test_events_below_the_level_of_the_logger_are_not_logged(
    link: Any, kept: Kept, name: str
) -> None:
    logs.log.setLevel(logging.WARNING)
    client = link(Logging())
    topic = client.topic(name)
    handled: list[Any] = []
    handle(topic, "plain", lambda body, d: handled.append(body))

    topic.send("x")
    work(client, lambda: handled)

    assert kept.of("rmq.messages") == []


def test_no_logger_is_configured() -> None:
    assert logs.log.handlers == []
    assert logs.log.propagate
    assert logging.getLogger("rmq").handlers == []


# --- the message in the records of its handler ---------------------------------------------------


@pytest.mark.parametrize("options", [{"concurrency": 1}, {"concurrency": 4}, {"ordered": True}])
@pytest.mark.parametrize("style", STYLES)
def test_what_a_handler_logs_carries_its_message_and_no_other(
    link: Any, kept: Kept, name: str, style: str, options: Any
) -> None:
    client = link(Logging())
    topic = client.topic(name, retry="immediate")

    def run(body: int, d: Any) -> None:
        shop.info("working on %d", body, extra={"body": body})
        if body % 3 == 0 and d.attempt == 1:
            raise ValueError(body)

    handle(topic, style, run, **options)
    sent = topic.send_many([Outgoing(n, slot_basis="s") for n in range(30)])
    work(client, lambda: len(kept.of("shop.orders")) >= 40)

    records: list[Any] = kept.of("shop.orders")
    assert {(one.body, one.message_id, one.topic) for one in records} == {
        (n, str(sent[n].id), name) for n in range(30)
    }
    assert sorted(one.attempt for one in records) == [1] * 30 + [2] * 10
    assert logs._runs.now is None


@both_clients
def test_a_thread_and_a_task_that_a_handler_starts_log_its_message(
    link: Any, kept: Kept, name: str
) -> None:
    client = link(Logging())
    topic = client.topic(name)

    async def run(body: str, d: Any) -> None:
        async def later() -> None:
            await asyncio.sleep(0.2)
            shop.info("task, after its handler")

        await asyncio.to_thread(shop.info, "thread")
        run.task = asyncio.create_task(later())  # type: ignore[attr-defined]
        thread = threading.Thread(target=shop.info, args=("a thread without its context",))
        thread.start()
        thread.join()

    topic.handler()(run)
    sent = topic.send("x")
    work(client, lambda: len(kept.of("shop.orders")) >= 3)

    records: list[Any] = kept.of("shop.orders")
    assert {one.getMessage(): one.message_id for one in records} == {
        "thread": str(sent.id), "task, after its handler": str(sent.id),
        "a thread without its context": "",
    }  # fmt: skip


@pytest.mark.parametrize("style", STYLES)
def test_a_batch_logs_its_first_message_and_its_size(
    link: Any, kept: Kept, name: str, style: str
) -> None:
    client = link(Logging())
    topic = client.topic(name)
    handle(topic, style, lambda bodies, ds: shop.info("%s", ds[0].id), batch=3, concurrency=1)

    topic.send_many([Outgoing(n) for n in range(6)])
    work(client, lambda: len(kept.of("rmq.messages")) >= 12)

    records: list[Any] = kept.of("shop.orders")
    assert [one.message_id for one in records] == [one.getMessage() for one in records]
    assert sum(one.batch for one in records) == 6


def test_a_message_sent_inside_a_handler_is_an_event_of_its_own(
    server: Server, kept: Kept, name: str
) -> None:
    with rmq.Client(server.url, interceptors=[Logging()]) as client:
        topic, other = client.topic(name), client.topic(f"{name}-2")
        sent: list[rmq.SendResult] = []
        handle(topic, "plain", lambda body, d: sent.append(other.send("y")))
        topic.send("x")
        work(client, lambda: sent)

    (event,) = [one for one in kept.events() if one["topic"] == other.name]
    assert (event["event"], event["message_id"]) == ("sent", str(sent[0].id))


def test_a_record_that_names_a_message_itself_keeps_it(link: Any, kept: Kept, name: str) -> None:
    client = link(Logging())
    topic = client.topic(name)
    handle(topic, "plain", lambda body, d: shop.info("x", extra={"topic": "mine"}))

    sent = topic.send("x")
    work(client, lambda: kept.of("shop.orders"))

    record: Any = kept.of("shop.orders")[0]
    assert (record.topic, record.message_id) == ("mine", str(sent.id))


# --- JSON ----------------------------------------------------------------------------------------


def formatted(**extra: Any) -> dict[str, Any]:
    record = logging.makeLogRecord(
        {"name": "shop", "msg": "paid %d", "args": (7,), "levelname": "INFO", "created": 0} | extra
    )
    MessageFilter().filter(record)
    line = JsonFormatter().format(record)
    assert "\n" not in line
    found: dict[str, Any] = json.loads(line)
    return found


def test_a_record_is_one_line_of_json_with_its_fields() -> None:
    assert formatted(order={"id": 7}, by={"a"}) == {
        "time": "1970-01-01T00:00:00.000Z", "level": "info", "logger": "shop",
        "message": "paid 7", "order": {"id": 7}, "by": "{'a'}",
    }  # fmt: skip
    assert formatted(message_id="m", topic="t")["message_id"] == "m"


def test_a_traceback_is_a_field() -> None:
    try:
        raise ValueError("x\ny")
    except ValueError as error:
        found = formatted(exc_info=(type(error), error, error.__traceback__))
    assert found["traceback"].endswith("ValueError: x\ny")


@pytest.mark.parametrize("value", [float("nan"), {(1, 2): 3}, "\ud800", b"\xff", object()])
def test_what_json_does_not_know_is_written_as_text(value: Any) -> None:
    assert "odd" in formatted(odd=value)
