"""Negative controls: a client of RMQ without its guard against faults of connections."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any

import pytest

import rmq
from bench.soak.proxy import between
from rmq.kernel.transport.connections.connector import Connector
from rmq.kernel.transport.errors import Kind, code_of, kind_of
from rmq.kernel.transport.single import server_commands
from rmq.kernel.transport.single.retry_deadline import RetryDeadline
from tests.faults.load import Load
from tests.faults.test_storms import every
from tests.servers import Server


def errors_of_a_storm(server: Server, name: str, *words: str) -> list[BaseException]:
    """Let messages flow while an admin sends a command again and again; return what was raised."""
    with server.raw() as raw, Load(server.url, name, slots=2) as load:
        every(0.02, 0.5, lambda: raw.execute_command(*words))
        return load.errors


@pytest.mark.fault("F24", control=True)
def test_a_client_that_does_not_load_on_noscript_tells_its_caller(
    ours: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert errors_of_a_storm(ours, name, "SCRIPT", "FLUSH") == []

    def kind(error: BaseException) -> Kind:
        return Kind.REFUSED if code_of(error) == "NOSCRIPT" else kind_of(error)

    with rmq.Client(ours.url) as client:
        client.topic(f"{name}-broken", slots=2, retry="immediate").open()  # loads scripts
    monkeypatch.setattr(server_commands, "_needs_loading", lambda reply: False)
    monkeypatch.setattr("rmq.kernel.transport.single.retry_deadline.kind_of", kind)
    errors = errors_of_a_storm(ours, f"{name}-broken", "SCRIPT", "FLUSH")

    print(f"FIG control, nothing is loaded again: {len(errors)} of 2 threads failed")
    assert errors
    assert all(isinstance(error, rmq.ScriptFailed) for error in errors)
    assert "No matching script" in str(errors[0])


@pytest.mark.fault("F25", control=True)
def test_a_client_that_repeats_nothing_tells_its_caller(
    ours: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill = ("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert errors_of_a_storm(ours, name, *kill) == []

    def give_up(self: RetryDeadline, error: BaseException) -> float:
        raise rmq.OutcomeUnknown("no reply") from error

    monkeypatch.setattr(RetryDeadline, "next_pause", give_up)
    errors = errors_of_a_storm(ours, f"{name}-broken", *kill)

    print(f"FIG control, nothing is repeated: {len(errors)} of 2 threads failed")
    assert [type(error) for error in errors] == [rmq.OutcomeUnknown]  # its producer ignores them


def seconds_in_a_hole(server: Server, name: str, most_s: float) -> float:
    """Send into a line that passes nothing; return when the caller was told, or `most_s`."""
    with between(server.port) as line, rmq.Client(line.url, timeout=0.3, retry_for=0.3) as client:
        topic = client.topic(name)
        topic.send("warm")
        line.hole = True
        told: list[float] = []

        def send() -> None:
            began = time.monotonic()
            with suppress(rmq.OutcomeUnknown):
                topic.send("x")
            told.append(time.monotonic() - began)

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        sender.join(most_s)
        waited_s = told[0] if told else most_s
        line.hole = False
        sender.join(30)
        return waited_s


@pytest.mark.fault("F10", control=True)
def test_a_client_of_rmq_without_a_timeout_hangs_in_a_black_hole(
    ours: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    noticed_s = seconds_in_a_hole(ours, name, 30)
    assert noticed_s < 10

    options = Connector._options

    def without_timeout(self: Connector) -> dict[str, Any]:
        return options(self) | {"socket_timeout": None}

    monkeypatch.setattr(Connector, "_options", without_timeout)
    most_s = 2 * noticed_s + 1
    waited_s = seconds_in_a_hole(ours, f"{name}-broken", most_s)

    print(f"FIG control, no timeout: not told in {most_s:.1f} s, otherwise {noticed_s:.1f} s")
    assert waited_s == most_s
