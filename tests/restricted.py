"""A proxy before a real server that refuses commands, as managed services and their proxies do."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import hiredis

from tests.servers import free_port

# What becomes of a command, by its words in capitals and whether a transaction is open on its
# connection: None: it goes to the server; bytes: the error that is answered; a list: the words that
# go to the server instead.
Rule = Callable[[list[bytes], bool], bytes | list[bytes] | None]


def lacks(*commands: str) -> Rule:
    """Return the rule of a server without some commands, given as "CONFIG" or "SCRIPT LOAD"."""
    missing = [command.encode().split() for command in commands]

    def rule(words: list[bytes], is_open: bool) -> bytes | None:
        for command in missing:
            if [word.upper() for word in words[: len(command)]] == command:
                return b"ERR unknown command '%s', with args beginning with: " % words[0]
        return None

    return rule


def takes_words(most: int) -> Rule:
    """Return the rule of a server that takes commands of so many words at most."""

    def rule(words: list[bytes], is_open: bool) -> bytes | None:
        return b"ERR too many arguments" if len(words) > most else None

    return rule


def each_of(*rules: Rule) -> Rule:
    """Return a rule of several."""
    return lambda words, is_open: next(filter(None, (one(words, is_open) for one in rules)), None)


def aborts_scripts_in_transactions(words: list[bytes], is_open: bool) -> list[bytes] | None:
    """Refuse a script in a transaction, and the transaction with it (EXECABORT)."""
    return [b"EVALSHA-IN-MULTI"] if is_open and words[0] == b"EVALSHA" else None


def leaves_scripts_out_of_transactions(words: list[bytes], is_open: bool) -> bytes | None:
    """Refuse a script in a transaction, and carry out the rest of it."""
    return b"ERR EVALSHA is not allowed in MULTI" if is_open and words[0] == b"EVALSHA" else None


def tells_little(words: list[bytes], is_open: bool) -> list[bytes] | None:
    """Answer INFO with the version alone."""
    return [b"ECHO", b"# Server\r\nredis_version:7.2.4\r\n"] if words[0] == b"INFO" else None


class _Link:
    """One connection through the proxy."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._is_open = False  # whether a transaction is
        self._unanswered = 0
        self._drained = asyncio.Event()

    async def serve(
        self, client: tuple[asyncio.StreamReader, asyncio.StreamWriter], port: int
    ) -> None:
        server = await asyncio.open_connection("127.0.0.1", port)
        back = asyncio.create_task(self._pass_replies(server[0], client[1]))
        try:
            await self._pass_commands(client, server[1])
        finally:
            back.cancel()
            for writer in (client[1], server[1]):
                writer.close()

    async def _pass_commands(
        self,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: asyncio.StreamWriter,
    ) -> None:
        reader = hiredis.Reader()
        while data := await client[0].read(1 << 16):
            reader.feed(data)
            while (words := reader.gets()) is not False:
                await self._pass_command(words, client[1], server)

    async def _pass_command(
        self, words: Any, client: asyncio.StreamWriter, server: asyncio.StreamWriter
    ) -> None:
        verdict = self._rule(words, self._is_open)
        if isinstance(verdict, bytes):
            while self._unanswered > 0:  # replies stay in order
                self._drained.clear()
                await self._drained.wait()
            client.write(b"-%s\r\n" % verdict)
            return
        if words[0] in (b"MULTI", b"EXEC"):
            self._is_open = words[0] == b"MULTI"
        self._unanswered += 1
        server.write(hiredis.pack_command(tuple(verdict or words)))

    async def _pass_replies(
        self, server: asyncio.StreamReader, client: asyncio.StreamWriter
    ) -> None:
        reader = hiredis.Reader()
        with contextlib.suppress(OSError):
            while data := await server.read(1 << 16):
                client.write(data)
                reader.feed(data)
                while reader.gets() is not False:
                    self._unanswered -= 1
                self._drained.set()
        self._unanswered = 0
        self._drained.set()
        client.close()


@contextlib.contextmanager
def proxy(port: int, rule: Rule) -> Iterator[str]:
    """The URL of a proxy before the server at a port."""
    loop, own, ready = asyncio.new_event_loop(), free_port(), threading.Event()
    links: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = asyncio.current_task()
        assert link is not None
        links.add(link)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await _Link(rule).serve((reader, writer), port)
        links.discard(link)

    async def run() -> None:
        listening = await asyncio.start_server(connected, "127.0.0.1", own)
        ready.set()
        await stopped.wait()
        listening.close()
        for link in tuple(links):
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)

    stopped = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(run()), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield f"redis://127.0.0.1:{own}/0"
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join(10)
        loop.close()
