"""Run fakeredis behind a TCP port of this process. The scripts of RMQ run there unchanged.

This module adds functions that fakeredis lacks:

* `struct` and `cmsgpack` in Lua: modules in `rmq/testing/lua`, for the formats that scripts use.
* A connection stays open after an error reply, and an error reply is a single line.
* Long replies are written completely. Long bodies are not read line by line.
* All scripts are loaded at the start.

docs/testing.md lists the differences from a real server. `tests/testing/test_alike.py` compares the
fake server with a real server.
"""

from __future__ import annotations

import importlib.metadata
import os
import select
import socket
import threading
from pathlib import Path
from typing import Any

from rmq.kernel.transport.lua import script_loader

LUA = Path(__file__).parent / "lua"
MODULES = {"struct", "cmsgpack"}
VERSION_MIN = (2, 40)  # the TCP server of earlier versions loses replies


class FakeServer:
    """A fakeredis server on a local port of this machine.

    Raises:
        ImportError: fakeredis or lupa is not installed, or too old.
    """

    def __init__(self) -> None:
        fakeredis: Any = importlib.import_module("fakeredis")
        version = importlib.metadata.version("fakeredis")
        if tuple(map(int, version.split(".")[:2])) < VERSION_MIN:
            raise ImportError(
                f"fakeredis {version} is too old; {VERSION_MIN[0]}.{VERSION_MIN[1]} will do"
            )
        # Without lupa, fakeredis has no EVAL, and reports this only when a script runs.
        importlib.import_module("lupa")
        self._server: Any = fakeredis.TcpFakeServer(("127.0.0.1", 0))
        self._server.rmq_down = False
        self._server.daemon_threads = True
        self._server.RequestHandlerClass = _with_open_connections(self._server.RequestHandlerClass)
        inside = fakeredis.FakeRedis(server=self._server.fake_server, lua_modules=set(MODULES))
        before = os.environ.get("LUA_PATH")
        os.environ["LUA_PATH"] = f"{LUA}/?.lua"
        try:
            inside.eval("return 1", 0)  # creates the Lua state, which loads the modules
        finally:
            if before is None:
                del os.environ["LUA_PATH"]
            else:
                os.environ["LUA_PATH"] = before
        for name in script_loader.names():
            inside.script_load(script_loader.load(name).text)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), name="rmq-fakeredis", daemon=True
        )
        self._thread.start()

    def url(self, database: int) -> str:
        """Return the URL of a database.

        The URL asks for RESP2, which every version of fakeredis supports.
        """
        return f"redis://127.0.0.1:{self._server.server_address[1]}/{database}?protocol=2"

    def stop(self) -> None:
        """Stop the server, and wait until its thread has ended."""
        self._server.rmq_down = True
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _with_open_connections(handler: Any) -> Any:
    """Return a connection handler that continues after an error reply, as a real server does."""

    class OpenConnection(handler):  # type: ignore[misc]
        disable_nagle_algorithm = True  # replies are written one by one

        def setup(self) -> None:
            super().setup()
            self.rfile = self.writer.writer = _NonBlockingFile(self.connection)
            dump = self.writer.dump
            self.writer.dump = lambda reply: dump(_one_line(reply))

        def handle(self) -> None:
            while True:
                super().handle()
                try:
                    gone = not self.connection.recv(1, socket.MSG_PEEK)
                except BlockingIOError:
                    gone = False
                except OSError:
                    gone = True
                if gone or self.server.rmq_down:
                    return

    return OpenConnection


class _NonBlockingFile:
    """Makes a non-blocking socket usable as a file.

    It reads what has arrived, and writes all bytes.
    """

    def __init__(self, socket_: socket.socket) -> None:
        self._socket = socket_

    def readline(self) -> bytes:
        """Return all received bytes, even an incomplete line, or b'' if nothing has arrived."""
        try:
            return self._socket.recv(1 << 20)
        except BlockingIOError:
            return b""

    def write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[self._socket.send(left) :]
            except BlockingIOError:
                select.select([], [self._socket], [], 1.0)

    def flush(self) -> None:
        """Do nothing, because every write is complete."""

    def close(self) -> None:
        """Do nothing, because the server closes the socket."""


def _one_line(reply: Any) -> Any:
    """Cut an error to its first line, because the lines of a Lua stack would break the reply."""
    if isinstance(reply, list) and any(isinstance(part, Exception) for part in reply):
        return [_one_line(part) for part in reply]  # of a transaction
    if isinstance(reply, Exception) and reply.args and "\n" in str(reply.args[0]):
        return type(reply)(str(reply.args[0]).split("\n", 1)[0])
    return reply
