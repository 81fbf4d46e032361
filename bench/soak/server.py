"""The Redis of a soak: embedded, behind a proxy, and killed or stopped by faults."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable

from bench.soak.proxy import Proxy
from rmq.errors import Unavailable
from rmq.kernel.transport.embedded import server_supervisor
from rmq.kernel.transport.embedded.embedded import Embedded

REPLY_S = 10.0
PATIENCE_S = 30.0


class Server:
    """An embedded server whose clients all connect through `proxy`.

    Its AOF is synced before each answer. With `everysec`, Redis answers before it has written,
    while the previous sync is still running. A kill -9 on a busy disk would lose that data.

    Args:
        directory: Directory of its data.
        aof: False: a kill loses everything, as the control of that fault.
    """

    def __init__(self, directory: str, *, aof: bool = True) -> None:
        self._embedded = Embedded.open(directory)
        self._directory = os.path.realpath(directory)
        self._aof = aof
        self._configure()
        self.proxy = Proxy(self._embedded.socket)

    def _configure(self) -> None:
        if self._aof:
            self.command("CONFIG", "SET", "appendfsync", "always")
        else:
            self.command("CONFIG", "SET", "appendonly", "no")

    @property
    def url(self) -> str:
        """The proxy's address, for clients."""
        return self.proxy.url

    @property
    def pid(self) -> int:
        """The process of the server."""
        return int(server_supervisor.record(self._directory)["server"])

    def command(self, *words: str) -> bytes:
        """Run a command without the proxy; return the first line of its reply.

        Raises:
            Unavailable: There is no reply, or it is an error.
        """
        parts = [f"*{len(words)}\r\n", *(f"${len(word)}\r\n{word}\r\n" for word in words)]
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(REPLY_S)
                connection.connect(self._embedded.socket)
                connection.sendall("".join(parts).encode())
                reply = connection.recv(4096).partition(b"\r\n")[0]
        except OSError as error:
            raise Unavailable(f"{words[0]}: the server does not answer: {error}") from error
        if not reply or reply.startswith(b"-"):
            raise Unavailable(f"{words[0]}: the server answered {reply!r}")
        return reply

    def signal(self, number: int) -> None:
        """Send a signal to the server."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the server with SIGKILL, and restart it with the same data."""
        pid = self.pid
        self.proxy.refuse = True  # until its AOF is synced again
        try:
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda: not _is_alive(pid), "the server does not end")
            self._embedded.ensure()
            self._configure()
            self.proxy.target = self._embedded.socket
        finally:
            self.proxy.refuse = False

    def close(self) -> None:
        """Stop the server and the proxy."""
        self.proxy.close()
        self._embedded.close()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_for(
    is_so: Callable[[], bool],
    otherwise: str,
    seconds: float = PATIENCE_S,
    pause: float = 0.01,
) -> None:
    """Check every `pause` seconds whether a condition holds, and wait until it does.

    Raises:
        Unavailable: It does not hold after `seconds`; `otherwise` is the message.
    """
    until = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > until:
            raise Unavailable(otherwise)
        time.sleep(pause)
