"""Number commands, so that Redis executes a command once even if it is sent twice.

A replay session is a name. One caller at a time sends numbered commands to a slot under this name.
The slot remembers the last number and its reply (`lua/lib/replay.lua`). If the same number comes
again, the slot returns this reply.
"""

from __future__ import annotations

import itertools
import secrets
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from rmq.kernel.core import process


class ReplaySession:
    """A replay session: its name, and the number of the last command that was sent with it.

    Attributes:
        call: Name and number of the current command, as an argument of a script.
    """

    __slots__ = ("call", "name", "number")

    def __init__(self, name: bytes, number: int = 0) -> None:
        self.name = name
        self.count_to(number)

    def count_to(self, number: int) -> None:
        """Set the number of the current command."""
        self.number = number
        self.call = b"%s %d" % (self.name, number)


class ReplaySessions:
    """The replay sessions of one client.

    No two commands use the same session at the same time. A forked child starts its own sessions.
    If a child used a session of its parent, the child would receive replies to the parent's
    commands.
    """

    __slots__ = ("_free", "_generation", "_made", "_stem")

    def __init__(self) -> None:
        self._free: deque[ReplaySession] = deque()
        self._start()

    def _start(self) -> None:
        self._generation = process.generation
        self._stem = secrets.token_urlsafe(9).encode()  # 12 bytes, which each write of a script has
        self._made = itertools.count(1)  # next() is atomic, so two threads never get the same name
        self._free = deque()

    @contextmanager
    def borrowed(self) -> Iterator[ReplaySession]:
        """Provide a session, with its next number, for one command in a `with` block."""
        session = self.acquire()
        try:
            yield session
        finally:
            self.release(session)

    def acquire(self) -> ReplaySession:
        """Return a session, with its next number, for one command. Give it back with `release`."""
        if self._generation != process.generation:
            self._start()
        try:
            session = self._free.pop()
        except IndexError:
            session = ReplaySession(b"@%s-%d" % (self._stem, next(self._made)))
        session.number += 1
        session.call = b"%s %d" % (session.name, session.number)
        return session

    def release(self, *sessions: ReplaySession) -> None:
        """Make sessions available for other commands, after the replies have arrived."""
        for session in sessions:
            if session.name.startswith(self._stem, 1):
                self._free.append(session)
