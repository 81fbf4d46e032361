"""A connection that evaluates scripts: what the heartbeat of a worker needs of Redis, and no more.

The heartbeat's process imports this file, so it needs nothing but the standard library: redis-py
would be half of the process's memory.
"""

from __future__ import annotations

import socket

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

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def evaluate(self, calls: list[Call]) -> list[Any]:
        """Evaluate scripts (verb, keys, arguments); return replies, errors among them.

        Raises:
            OSError: Redis did not answer.
        """
        if self._socket is not None:
            try:
                return self._evaluate(calls)
            except OSError:
                pass  # a connection that was idle may be dead; scripts may be run twice
        return self._evaluate(calls)

    def _evaluate(self, calls: list[Call]) -> list[Any]:
        try:
            if self._socket is None:
                self._connect()
            replies = self._send([self._words(call, "EVALSHA", 0) for call in calls])
            missing = [i for i, r in enumerate(replies) if _is_error(r, "NOSCRIPT")]
            texts = self._send([self._words(calls[i], "EVAL", 1) for i in missing])
            for i, reply in zip(missing, texts):  # noqa: B905 (as long as each other)
                replies[i] = reply
            if any(_is_error(reply, "READONLY", "MASTERDOWN", "LOADING") for reply in replies):
                raise OSError("the server is no master now")
        except (OSError, ValueError, IndexError) as error:
            self.close()
            raise error if isinstance(error, OSError) else OSError(f"reply: {error}") from None
        return replies

    def _words(self, call: Call, verb: str, part: int) -> list[Any]:
        name, keys, args = call
        return [verb, self.scripts[name][part], len(keys), *keys, *args]

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
            connection = socket.create_connection((given["host"], given["port"]), timeout)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = connection
            if given.get("tls") is not None:
                self._socket = _tls_context(given["tls"]).wrap_socket(
                    connection, server_hostname=given["host"]
                )
        self._reader = self._socket.makefile("rb")
        first: list[list[Any]] = []
        if given.get("password") is not None:
            name = [given["username"]] if given.get("username") else []
            first.append(["AUTH", *name, given["password"]])
        if given.get("db"):
            first.append(["SELECT", given["db"]])
        for reply in self._send(first):
            if isinstance(reply, RedisError):
                raise OSError(str(reply))


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
