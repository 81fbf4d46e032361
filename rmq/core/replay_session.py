"""Replay sessions: a command that is sent twice is done once.

A session is a name under which one caller at a time sends numbered commands to a slot. The slot
remembers the last number and its reply (`lua/lib/replay.lua`).
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from rmq.core import fork


class ReplaySession:
    """A name and the sequence number of the last command that was sent under it."""

    __slots__ = ("name", "number")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.number = 0

    @property
    def call(self) -> bytes:
        """The present command, as scripts take it."""
        return b"%s %d" % (self.name, self.number)


class ReplaySessions:
    """The sessions of one client. Threads and tasks take one each for the time of a command.

    A forked child starts its own: two processes that number commands in one session would be given
    each other's answers.
    """

    __slots__ = ("_free", "_generation", "_made", "_stem")

    def __init__(self) -> None:
        self._free: deque[ReplaySession] = deque()
        self._start()

    def _start(self) -> None:
        self._generation = fork.generation
        self._stem = os.urandom(9).hex().encode()
        self._made = itertools.count(1)  # next() is atomic, so two threads never get the same name
        self._free = deque()

    @contextmanager
    def borrowed(self) -> Iterator[ReplaySession]:
        """Lend a session for one command, at its next number."""
        session = self.take()
        try:
            yield session
        finally:
            self.give(session)

    def take(self) -> ReplaySession:
        """Return a session for one command, at its next number; `give` it back after the reply."""
        if self._generation != fork.generation:
            self._start()
        try:
            session = self._free.pop()
        except IndexError:
            session = ReplaySession(b"@%s-%d" % (self._stem, next(self._made)))
        session.number += 1
        return session

    def give(self, *sessions: ReplaySession) -> None:
        """Take sessions back for the next commands."""
        for session in sessions:
            if session.name.startswith(self._stem, 1):
                self._free.append(session)
