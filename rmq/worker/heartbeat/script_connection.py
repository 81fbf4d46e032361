"""A connection that evaluates scripts: what the heartbeat of a worker needs of Redis, and no more.

The heartbeat's process imports this file, so it needs nothing but the standard library: redis-py
would be half of the process's memory.
"""

from __future__ import annotations

import socket
import time

from rmq.worker.heartbeat import sentinel_question

TYPE_CHECKING = False  # not imported: `typing` would be a tenth of the heartbeat's memory
if TYPE_CHECKING:
    from typing import Any

    Call = tuple[str, list[bytes], list[Any]]  # verb, keys, arguments


class RedisError(Exception):
    """An error reply."""


class ScriptConnection:
    """A connection that evaluates scripts in pipelines, by RESP2. Made anew after any failure."""

    def __init__(self, options: dict[str, Any], scripts: dict[str, list[str]]) -> None:
        self.options = options
        self.scripts = scripts  # by verb: SHA-1 and text
        self._socket: Any = None
        self._master: tuple[str, int] | None = None  # as the sentinels said, if the URL names some
        self._asked_at = 0.0  # when they said it

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def evaluate(self, calls: list[Call], asking: bool = False) -> list[Any]:
        """Evaluate scripts (verb, keys, arguments); return replies, errors among them.

        `asking`: each behind ASKING, as a node of a cluster wants it of a slot that it is given.

        Raises:
            OSError: Redis did not answer.
        """
        if self._socket is not None:
            if self.options.get("sentinels"):
                self._follow_master()
            try:
                return self._evaluate(calls, asking)
            except OSError:
                pass  # a connection that was idle may be dead; scripts may be run twice
        return self._evaluate(calls, asking)

    def _evaluate(self, calls: list[Call], asking: bool) -> list[Any]:
        try:
            if self._socket is None:
                self._connect()
            replies = self._send_all([self._words(call) for call in calls], asking)
            missing = [i for i, r in enumerate(replies) if _is_error(r, "NOSCRIPT")]
            if missing:
                names = sorted({calls[i][0] for i in missing})
                # Not EVAL: the ACL rule of loading scripts is enough for a worker.
                self._send([["SCRIPT", "LOAD", self.scripts[name][1]] for name in names])
                again = self._send_all([self._words(calls[i]) for i in missing], asking)
                for i, reply in zip(missing, again):  # noqa: B905 (as long as each other)
                    replies[i] = reply
            if any(_is_error(reply, "READONLY", "MASTERDOWN", "LOADING") for reply in replies):
                raise OSError("the server is no master now, or is loading its data")
        except (OSError, ValueError, IndexError) as error:
            self.close()
            raise error if isinstance(error, OSError) else OSError(f"reply: {error}") from None
        return replies

    def send_words(self, words: list[Any]) -> Any:
        """Send one command, on a connection that is made if there is none; return the reply."""
        if self._socket is None:
            self._connect()
        return self._send([words])[0]

    def _follow_master(self) -> None:
        """Give up a connection to a server that the sentinels call the master no more.

        A server that was stopped during its failover renews leases for some seconds after it wakes
        up, and nobody else knows of them.
        """
        known = self._master
        if time.monotonic() < self._asked_at + sentinel_question.ASK_S:
            return
        try:
            self._ask_sentinels()
        except OSError:
            return  # it goes on with the master that it knows
        if self._master != known:
            self.close()

    def _ask_sentinels(self) -> None:
        self._asked_at = time.monotonic()
        self._master = sentinel_question.master(self.options, lambda to: ScriptConnection(to, {}))

    def _words(self, call: Call) -> list[Any]:
        name, keys, args = call
        return ["EVALSHA", self.scripts[name][0], len(keys), *keys, *args]

    def _send_all(self, commands: list[list[Any]], asking: bool) -> list[Any]:
        if not asking:
            return self._send(commands)
        replies = self._send([words for one in commands for words in (["ASKING"], one)])
        return [
            asked if isinstance(asked, RedisError) else reply
            for asked, reply in zip(replies[::2], replies[1::2])  # noqa: B905 (as long)
        ]

    def _send(self, commands: list[list[Any]]) -> list[Any]:
        lines = []
        for words in commands:
            lines.append(b"*%d\r\n" % len(words))
            for word in words:
                text = word if isinstance(word, bytes) else str(word).encode()
                lines.append(b"$%d\r\n%s\r\n" % (len(text), text))
        if lines:
            self._socket.sendall(b"".join(lines))
        return [self._read() for _ in commands]

    def _read(self) -> Any:
        line = self._reader.readline()
        if not line.endswith(b"\r\n"):
            raise OSError("the server closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            return RedisError(rest.decode(errors="replace"))
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self._reader.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self._read() for _ in range(int(rest))]
        return rest

    def _connect(self) -> None:
        given = self.options
        timeout = given["timeout"]
        if given.get("path"):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(timeout)
            self._socket = connection
            connection.connect(given["path"])
        else:
            host, port = self._server()
            connection = socket.create_connection((host, port), timeout)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = connection
            if given.get("tls") is not None:
                self._socket = _tls_context(given["tls"]).wrap_socket(
                    connection, server_hostname=host
                )
        self._reader = self._socket.makefile("rb")
        first: list[list[Any]] = []
        if given.get("password") is not None:
            name = [given["username"]] if given.get("username") else []
            first.append(["AUTH", *name, given["password"]])
        if given.get("db"):
            first.append(["SELECT", given["db"]])
        if given.get("sentinels"):
            first.append(["ROLE"])
        replies = self._send(first)
        for reply in replies:
            if isinstance(reply, RedisError):
                raise OSError(str(reply))
        if given.get("sentinels") and replies[-1][0] != b"master":
            raise OSError("the server that the sentinels name says that it is no master")

    def _server(self) -> tuple[str, int]:
        """Return host and port of the server to connect to."""
        if not self.options.get("sentinels"):
            return self.options["host"], self.options["port"]
        try:
            self._ask_sentinels()
        except OSError:
            if self._master is None:
                raise
        assert self._master is not None
        return self._master


def _is_error(reply: Any, *codes: str) -> bool:
    return isinstance(reply, RedisError) and str(reply).startswith(codes)


def _tls_context(given: dict[str, Any]) -> Any:
    """Return the context for the options of redis-py's URL."""
    import ssl

    context = ssl.create_default_context(
        cafile=given.get("ssl_ca_certs"), capath=given.get("ssl_ca_path"),
        cadata=given.get("ssl_ca_data"),
    )  # fmt: skip
    mode = given.get("ssl_cert_reqs") or "required"
    context.check_hostname = mode != "none" and bool(given.get("ssl_check_hostname", True))
    context.verify_mode = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL}.get(
        mode, ssl.CERT_REQUIRED
    )
    if given.get("ssl_certfile"):
        context.load_cert_chain(
            given["ssl_certfile"], given.get("ssl_keyfile"), given.get("ssl_password")
        )
    if given.get("ssl_ciphers"):
        context.set_ciphers(given["ssl_ciphers"])
    if given.get("ssl_min_version"):
        context.minimum_version = ssl.TLSVersion(int(given["ssl_min_version"]))
    return context
