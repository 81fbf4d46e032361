"""The state of a topic in one client: name, keys, settings, replay sessions, the choice of slots.

A replay session is a name under which one caller at a time sends numbered commands to a slot. The
slot remembers the last number and its reply (`lua/lib/replay.lua`), so a command that is sent
twice is done once.

A message's slot is the CRC-32 (ISO-HDLC, as `zlib.crc32`) of the UTF-8 bytes of its `slot_basis`,
modulo the number of slots. Any language with that CRC agrees;
tests/unit/kernel/topic/test_context_slots.py has vectors from crcmod.

Commands carry no time, so that scripts ask the server's clock, or a test's.
"""

from __future__ import annotations

import itertools
import os
import time
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rmq.errors import ConfigurationError, InvalidType, InvalidValue
from rmq.kernel.core import ids, process, record, settings as core_settings
from rmq.kernel.core.codec import Codec
from rmq.kernel.core.ids import MessageId
from rmq.kernel.core.interceptor import Hooks
from rmq.kernel.core.keys import (
    SlotKeys,
    check_name,
    history_key,
    topic_key,
    topics_key,
    wake_channel,
)
from rmq.kernel.core.settings import Settings
from rmq.kernel.core.validation import utf8


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
        self._generation = process.generation
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
        if self._generation != process.generation:
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


# Messages without a basis go to a slot in runs of this length: the load is even over time, and a
# batch needs one script call instead of a call for each slot.
RUN_LENGTH = 100


def slot_of(basis: str | bytes, slots: int) -> int:
    """Return the slot of a basis: always the same while the topic exists."""
    if isinstance(basis, str):
        basis = utf8(basis, "slot_basis")
    elif not isinstance(basis, bytes):
        raise InvalidType(f"slot_basis: {type(basis).__name__}; give str or bytes")
    return zlib.crc32(basis) % slots


class SlotRotation:
    """Chooses slots for messages without a basis, round-robin."""

    __slots__ = ("_turn", "slots")

    def __init__(self, slots: int, start: int = 0) -> None:
        self.slots = slots
        self._turn = itertools.count(start)

    def next(self) -> int:
        """Return the slot for the next RUN_LENGTH messages."""
        return next(self._turn) % self.slots


FOLLOW_S = 30.0  # the greatest age of a client's copy of the settings


class TopicContext:
    """A topic as one client knows it. Its settings are unknown until the topic is opened."""

    def __init__(
        self,
        prefix: str,
        name: object,
        codec: Codec,
        sessions: ReplaySessions,
        requested: Mapping[str, object],
        hooks: Hooks | None = None,
    ) -> None:
        self.name = check_name(name, "topic")
        self.prefix = prefix
        self.codec = codec
        self.sessions = sessions
        self.hooks = hooks or Hooks()
        self.requested: dict[str, Any] = core_settings.check(requested)
        self.check = ids.topic_check(prefix, self.name)
        self.key = topic_key(prefix, self.name)
        self.topics_key = topics_key(prefix)
        self.history_key = history_key(prefix, self.name)
        self.channel = wake_channel(prefix, self.name)
        self.created = b""  # the stamp of the slots: `identity`, and 1 us more for each resize
        self.identity = b""  # the stamp of the topic
        self.revision = 0  # of the settings when they were read: the number of their changes
        self.read_at = 0.0  # when the settings were read, by the monotonic clock
        self.full_until = 0.0  # no slot has room to give before, by the monotonic clock
        self.is_ready = False
        self.sends: dict[Any, Any] = {}  # durability -> what lets its sends share calls
        self.had_large = False  # whether this client has received a large body of it
        self._settings: Settings | None = None
        self._is_open = False
        # Of an open topic only:
        self.slots: list[SlotKeys] = []  # that may hold messages, by index
        self.spread: SlotRotation  # the rotation of slots for messages without a basis
        self.apart_bytes = record.MIN_BYTES_OF_CALL  # in one call: larger bodies stand apart

    @property
    def is_open(self) -> bool:
        """Whether the settings have been read, and are not to be read again."""
        return self._is_open

    @property
    def settings(self) -> Settings:
        """The settings in Redis; only of a topic that was opened."""
        if self._settings is None:
            raise ConfigurationError(
                f"topic {self.name!r} has not been opened, so its settings are not known; call "
                "open() first, or Admin.topic_settings"
            )
        return self._settings

    def mark_open(
        self, settings: Settings, created: bytes, ready: bool = True, revision: int = 0
    ) -> None:
        """Take note of the settings in Redis, and of the topic's stamp.

        `ready`: every slot has its fields.
        """
        stamp = settings.slot_stamp(created)
        self.slots = [SlotKeys(self.prefix, self.name, i, stamp) for i in range(settings.all_slots)]
        # A take with limits for each key reads many records.
        self.apart_bytes = record.MIN_BYTES if settings.limit.key else record.MIN_BYTES_OF_CALL
        self.spread = SlotRotation(settings.slots, int.from_bytes(os.urandom(2), "big"))
        self.created, self.identity = stamp, created
        self.revision = revision
        self.read_at = time.monotonic()
        self._settings = settings
        self._is_open = True
        self.is_ready = ready

    def is_old(self) -> bool:
        """Whether the settings were read so long ago that they are to be read again."""
        return time.monotonic() - self.read_at >= FOLLOW_S

    def is_current(self) -> bool:
        """Whether the topic can be used as it is: its slots are ready, its settings not old."""
        return self.is_ready and time.monotonic() - self.read_at < FOLLOW_S

    def forget(self) -> None:
        """Read the settings again before the next command.

        Until then they stay, for calls of other threads and tasks that are about to be made: their
        scripts compare the stamp.
        """
        self._is_open = self.is_ready = False

    def check_id(self, value: MessageId | bytes | str, field: str = "id") -> MessageId:
        """Return an id if it can belong to this topic, which must be open.

        Raises:
            InvalidValue: it is of another topic, or of a slot that this topic does not have.
        """
        message_id = MessageId.parse(value, field)
        if message_id.check != self.check:
            raise InvalidValue(f"{field}: {message_id} is of another topic than {self.name!r}")
        if message_id.slot >= len(self.slots):
            raise InvalidValue(
                f"{field}: {message_id} is of slot {message_id.slot}; "
                f"topic {self.name!r} has {len(self.slots)}"
            )
        return message_id


now_us = b""  # ARGV of scripts: epoch microseconds of a test, or nothing for the server's clock


def set_clock(test_us: int | None) -> None:
    """Give every later command this time instead of the server's clock; for tests only."""
    global now_us
    now_us = b"" if test_us is None else b"%d" % test_us


def now_ms() -> int:
    """Return the time in epoch ms as this process knows it: a test's, or the local clock's.

    It is good enough to tell years apart. Whether a message is due is decided by the server's
    clock.
    """
    return int(now_us) // 1000 if now_us else time.time_ns() // 1_000_000
