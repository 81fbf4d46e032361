"""Acks of a worker are sent together, and none is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from kombu.asynchronous.hub import Hub

import rmq
from rmq.integrations.celery import acks
from rmq.integrations.celery.acks import AckSender
from tests.celery.test_transport import Inbox, counts, publish
from tests.patience import PATIENCE_S, wait_for


@pytest.fixture
def hub() -> Iterator[Hub]:
    made = Hub()
    yield made
    made.close()


def test_acks_that_come_while_others_are_sent_share_the_next_command() -> None:
    calls: list[list[str]] = []
    is_sent = threading.Event()

    def send(tags: list[str]) -> None:
        calls.append(tags)
        is_sent.wait(PATIENCE_S)

    sender = AckSender(send)
    sender.add("0")
    wait_for(lambda: calls)
    for tag in "1234":
        sender.add(tag)
    is_sent.set()
    sender.close()

    assert calls == [["0"], ["1", "2", "3", "4"]]


def test_a_close_waits_for_no_time_and_sends_what_is_left(monkeypatch) -> None:
    monkeypatch.setattr(acks, "GATHER_S", 600.0)
    calls: list[list[str]] = []
    sender = AckSender(calls.append)
    sender.add("0")
    wait_for(lambda: calls)
    sender.add("1")
    sender.close()

    assert calls == [["0"], ["1"]]
    assert sender.add("2") is False


@pytest.mark.parametrize("sends", [True, pytest.param(False, id="control: a close that forgets")])
def test_a_closed_connection_has_sent_its_acks(connect, name, hub, sends, monkeypatch) -> None:
    monkeypatch.setattr(acks, "GATHER_S", 600.0)
    close = AckSender.close
    if not sends:
        monkeypatch.setattr(AckSender, "close", lambda self: None)
    connection, other = connect(), connect()
    connection.register_with_event_loop(hub)
    sender = connection.transport.inbox._acks
    inbox = Inbox(connection, "q", prefetch_count=100)
    publish(other, 0)
    inbox.wait(1)
    wait_for(lambda: counts(other, name)["settled"] == 1, "the first ack waits")
    for number in range(1, 4):
        publish(other, number)
    inbox.wait(4)
    connection.close()

    found = counts(other, name)
    assert (found["settled"], found["priority"] + found["retries"]) == ((4, 0) if sends else (1, 3))
    if not sends:
        close(sender)  # ends its thread


@pytest.mark.parametrize("skips", [True, pytest.param(False, id="control: no look at the lease")])
def test_a_lost_lease_does_not_stop_the_acks_of_other_messages(
    connect, name, hub, skips, monkeypatch, caplog
) -> None:
    connection, other = connect(), connect()
    for number in range(3):
        publish(other, number)
    connection.register_with_event_loop(hub)
    inbox = Inbox(connection, "q", ack=False)
    inbox.wait(3)
    sent = connection.transport.inbox
    receipt = inbox.messages[1].delivery_tag
    with other.transport.topic("q").consumer() as thief:
        assert thief.ack_receipts([receipt]) == []
    for held in list(sent._held.values())[:1]:
        sent._extend(held.consumer)  # the renewal notices that the lease of one is gone
    if not skips:
        monkeypatch.setattr(rmq.Delivery, "is_settled", False)
    # In one call, as the sender of acks does it. Of three acks it may send the first one alone.
    sent.settle("ack", [message.delivery_tag for message in inbox.messages])
    assert not sent._held

    assert counts(other, name)["in_flight"] == (0 if skips else 2)
    assert ("had ended before its ack" in caplog.text) == skips


def test_a_hundred_messages_need_few_commands_to_be_acked(connect, name, hub, raw) -> None:
    connection, other = connect(), connect()
    for number in range(100):
        publish(other, number)
    inbox = Inbox(connection, "q", ack=False)
    inbox.wait(100)
    connection.register_with_event_loop(hub)
    before = _scripts(raw)
    for message in inbox.messages:
        message.ack()
    wait_for(lambda: not connection.transport.inbox._held)

    assert _scripts(raw) - before <= 20  # of other programs as well
    assert counts(other, name)["settled"] == 100


def test_a_publish_is_one_command(connect, raw) -> None:
    connection = connect()
    publish(connection, 0)
    with connection.channel() as channel:
        before = raw.info("commandstats")
        for number in range(50):
            channel.basic_publish(
                channel.prepare_message(str(number), headers={"task": "t"}), "", "q"
            )
        after = raw.info("commandstats")

    def calls(name: str) -> Any:
        return after[name]["calls"] - before.get(name, {"calls": 0})["calls"]

    assert 50 <= calls("cmdstat_evalsha") <= 60
    assert "cmdstat_ping" not in after or calls("cmdstat_ping") <= 10


def _scripts(raw: Any) -> int:
    return int(raw.info("commandstats")["cmdstat_evalsha"]["calls"])


def test_an_unknown_error_ends_no_acks_and_gives_the_messages_back(
    connect, name, hub, monkeypatch, caplog
) -> None:
    connection, other = connect(), connect()
    connection.register_with_event_loop(hub)
    inbox = Inbox(connection, "q", prefetch_count=100)
    ack, failed = rmq.Consumer.ack, threading.Event()

    def fail_once(self: rmq.Consumer, *args: Any) -> Any:
        if not failed.is_set():
            failed.set()
            raise ZeroDivisionError("a fault")
        return ack(self, *args)

    monkeypatch.setattr(rmq.Consumer, "ack", fail_once)
    publish(other, 0)
    inbox.wait(1)
    wait_for(lambda: not connection.transport.inbox._held, "the message is not renewed")
    publish(other, 1)
    inbox.wait(2)
    wait_for(lambda: counts(other, name)["settled"] == 1)

    assert "ack of 1 messages: they may run again" in caplog.text
    assert "ZeroDivisionError" in caplog.text
