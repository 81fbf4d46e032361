"""Records the commands that leave a client while it plays a scenario.

Commands are read where the driver writes them to a socket, below all code of RMQ. Each recording
has the same clock, random numbers, host, process id and topic, so that it is the same on every
machine; `wire_text` writes it as lines.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import hashlib
import os
import random
import secrets
import socket
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import redis.asyncio.connection
import redis.connection

from rmq.kernel.core import failure, ids
from rmq.kernel.topic import clock as command_clock
from rmq.kernel.transport.lua import script_loader
from tests.golden.wire_text import NOW_US, PROCESS, Request, Text, lines_by_thread, read_commands
from tests.integration.driven import connect
from tests.servers import Server

PREFIX, TOPIC = "golden", "orders"
HOST, PID, USER = "worker.example", 4242, "anna"
DEADLINE_S = 20.0  # for what a scenario awaits

# What redis-py sends when it connects, which is its own affair.
_HANDSHAKE = {b"HELLO", b"AUTH", b"CLIENT", b"SELECT"}
_HEARTBEAT = "rmq-heartbeat"  # the thread that writes to its socket without redis-py
_UNSTEADY = "rmq-status"  # the thread that reports what happens to run at the moment
_monotonic = time.monotonic
_sendall = socket.socket.sendall


class Environment:
    """The surroundings of a client, the same for every recording; for `with`.

    Clocks stand still until `advance`. Waits are real: no clock shows how long they took.
    """

    def __init__(self) -> None:
        self.drawn: list[bytes] = []
        self._draws = Counter[int]()
        self._now_us = NOW_US
        self._monotonic_s = _monotonic()
        self._restore = contextlib.ExitStack()

    def advance(self, seconds: float) -> None:
        """Let time pass, for Redis and for the client."""
        self._now_us += round(seconds * 1_000_000)
        self._monotonic_s += seconds
        command_clock.set_clock(self._now_us)

    def _draw(self, size: int) -> bytes:
        if size <= 2:
            return bytes(size)  # where the rotation of slots begins
        # Counted by size: redis-py draws numbers too, in one of its clients and not in the other.
        self._draws[size] += 1
        drawn = hashlib.blake2b(b"%d" % self._draws[size], digest_size=size).digest()
        self.drawn.append(drawn)
        return drawn

    def __enter__(self) -> Environment:
        replaced: list[tuple[Any, str, Any]] = [
            (time, "time", lambda: self._now_us / 1_000_000),
            (time, "time_ns", lambda: self._now_us * 1000),
            (time, "monotonic", lambda: self._monotonic_s),
            (os, "urandom", self._draw),
            (random, "_urandom", self._draw),
            (secrets, "token_bytes", lambda size=32: self._draw(size)),
            (os, "getpid", lambda: PID),
            (socket, "gethostname", lambda: HOST),
            (getpass, "getuser", lambda: USER),
            # Without the numbers of lines, which change with every edit.
            (traceback, "format_exception", lambda error, *_, **__: [f"Traceback of {error!r}\n"]),
            (ids, "_random", PROCESS),
            (ids, "_last", {0: 0}),
        ]
        for owner, name, value in replaced:
            self._restore.enter_context(mock.patch.object(owner, name, value))
        self._restore.callback(random.setstate, random.getstate())
        random.seed(1)
        failure._host.cache_clear()
        self._restore.callback(failure._host.cache_clear)
        self._restore.callback(command_clock.set_clock, None)
        command_clock.set_clock(self._now_us)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore.close()


class Recorder:
    """Notes what leaves on any connection of this process; for `with`.

    Attributes:
        requests: what has left.
        subscribed: channels of which a blocking client has read that it is subscribed to them.
    """

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.subscribed: list[bytes] = []
        self._threads = threading.local()
        self._restore = contextlib.ExitStack()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Note nothing of what this thread sends meanwhile."""
        self._threads.is_paused = True
        yield
        self._threads.is_paused = False

    def _note(self, packed: Any) -> None:
        thread = threading.current_thread().name
        if thread == _UNSTEADY or getattr(self._threads, "is_paused", False):
            return
        whole = packed if isinstance(packed, bytes) else b"".join(packed)
        commands = [words for words in read_commands(whole) if words[0] not in _HANDSHAKE]
        if commands:
            self.requests.append(Request(commands, thread))

    def __enter__(self) -> Recorder:
        blocking = redis.connection.AbstractConnection
        awaiting = redis.asyncio.connection.AbstractConnection
        for driver in (blocking, awaiting):
            patch = mock.patch.object(driver, "send_packed_command", self._noting(driver))
            self._restore.enter_context(patch)
        read = blocking.read_response

        def read_response(connection: Any, *args: Any, **options: Any) -> Any:
            reply = read(connection, *args, **options)
            if isinstance(reply, list) and reply[:1] == [b"subscribe"]:
                self.subscribed.append(reply[1])
            return reply

        patch = mock.patch.object(blocking, "read_response", read_response)
        self._restore.enter_context(patch)
        write = asyncio.StreamWriter.write

        def noting(writer: asyncio.StreamWriter, packed: bytes) -> None:
            if packed[:1] == b"*":  # of AsyncPool, past redis-py's connection
                self._note(packed)
            write(writer, packed)

        self._restore.enter_context(mock.patch.object(asyncio.StreamWriter, "write", noting))

        def sendall(sent_on: socket.socket, packed: Any, *flags: int) -> None:
            if threading.current_thread().name == _HEARTBEAT:
                self._note(packed)
            _sendall(sent_on, packed, *flags)

        self._restore.enter_context(mock.patch.object(socket.socket, "sendall", sendall))
        return self

    def _noting(self, driver: Any) -> Callable[..., Any]:
        send = driver.send_packed_command

        def send_packed_command(connection: Any, packed: Any, *args: Any, **options: Any) -> Any:
            self._note(packed)
            return send(connection, packed, *args, **options)

        return send_packed_command

    def __exit__(self, *_: object) -> None:
        self._restore.close()


class Scene:
    """The clients, the topics and the clock of a scenario.

    Attributes:
        client: of the kind that is asked for; an async one is called as if it were blocking.
        by_thread: the recording has a part for each thread.
    """

    def __init__(
        self, server: Server, kind: str, environment: Environment, recorder: Recorder
    ) -> None:
        self._server, self._kind = server, kind
        self._environment, self._recorder = environment, recorder
        self._clients = contextlib.ExitStack()
        self.by_thread = False
        self.client = self.connect()

    def connect(self, **options: Any) -> Any:
        """Return a further client; it is closed at the end."""
        client = connect(self._kind, self._server.url, prefix=PREFIX, retry_for=2, **options)
        if self._kind == "async":
            client.loop.time = _monotonic  # its timeouts are real
        return self._clients.enter_context(client)

    def close(self) -> None:
        """Close the clients."""
        self._clients.close()

    @property
    def admin(self) -> Any:
        """The administration of the client's topics."""
        return self.client.admin

    @property
    def plain_client(self) -> Any:
        """The client as a worker takes it."""
        return self.client if self._kind == "sync" else self.client.target

    def topic(self, name: str = TOPIC, **settings: Any) -> Any:
        """Return a topic of the client."""
        return self.client.topic(name, **settings)

    def opened(self, name: str = TOPIC, **settings: Any) -> Any:
        """Return a topic that is open; what opened it is not recorded, nor what was before."""
        topic = self.topic(name, **settings)
        topic.open()
        self.forget()
        return topic

    def handle(
        self,
        topic: Any,
        function: Callable[[Any], object],
        *decorators: Callable[[Any], Any],
        **options: Any,
    ) -> None:
        """Register a handler that may block; a coroutine where the client is async."""

        def handler(given: Any) -> None:
            function(given)

        async def async_handler(given: Any) -> None:
            await asyncio.to_thread(function, given)

        decorated: Any = handler if self._kind == "sync" else async_handler
        for decorator in decorators:
            decorated = decorator(decorated)
        topic.handler(**options)(decorated)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._environment.advance(seconds)

    def forget(self) -> None:
        """Forget what is recorded so far."""
        self._recorder.requests.clear()

    def flush_scripts(self) -> None:
        """Let the server forget all scripts."""
        with self._recorder.paused(), self._server.raw() as raw:
            raw.script_flush()

    def wait_until(self, condition: Callable[[], object]) -> None:
        """Wait until something holds. As `wait_for` of tests/patience, by a clock that runs."""
        until = _monotonic() + DEADLINE_S
        while not condition():
            assert _monotonic() < until, f"not in {DEADLINE_S:g} s"
            time.sleep(0.002)

    def wait_for_credit(self) -> None:
        """Wait until a consumer sleeps and has left a credit in the first slot of the topic."""
        with self._recorder.paused(), self._server.raw() as raw:
            self.wait_until(lambda: raw.hget(f"{PREFIX}:{{{TOPIC}_0}}:slot", "credits"))

    def wait_for_subscribed(self, count: int) -> None:
        """Wait until a worker has read that it is subscribed to so many channels."""
        self.wait_until(lambda: len(self._recorder.subscribed) >= count)

    def wait_for_sent(self, verb: str, count: int = 1) -> None:
        """Wait until a command has been sent so often: a script by its verb, or a plain one."""
        words = [verb.encode()]
        if verb.islower():
            words = [b"EVALSHA", script_loader.load(verb).sha.encode()]
        sent = self._recorder.requests
        self.wait_until(lambda: sum(request.count(*words) for request in list(sent)) >= count)


Scenario = Callable[[Scene], object]


def record(scenario: Scenario, server: Server, kind: str = "sync") -> list[str]:
    """Play a scenario with a client of a kind, "sync" or "async"; return the lines that it gives.

    All keys of the prefix are deleted afterwards.
    """
    with server.raw() as raw:
        scripts = [script_loader.load(name) for name in script_loader.names()]
        for script, is_there in zip(
            scripts, raw.script_exists(*(s.sha for s in scripts)), strict=True
        ):
            if not is_there:
                raw.script_load(script.text)
        try:
            with Environment() as environment, Recorder() as recorder:
                scene = Scene(server, kind, environment, recorder)
                try:
                    scenario(scene)
                finally:
                    scene.close()
        finally:
            for key in raw.scan_iter(f"{PREFIX}:*", count=1000):
                raw.delete(key)
    text = Text(environment.drawn, time.time())
    if scene.by_thread:
        return [*lines_by_thread(recorder.requests, text)]
    return [*text.lines(recorder.requests)]
