"""What a client knows of a topic: its name, its settings once they are read, its keys. No sockets.

Also lanes: a lane is a name under which one caller at a time sends numbered commands to a slot, so
that a command sent twice is done once (`lua/lib/replay.lua`).
"""

from __future__ import annotations

import itertools
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rmq import ids, settings
from rmq.codec import Codec
from rmq.errors import InvalidValue
from rmq.ids import MessageId
from rmq.interceptor import Hooks
from rmq.keys import SlotKeys, check_name, topic_key, topics_key, wake_channel
from rmq.settings import Settings
from rmq.slots import Spread

_generation = 0


def _forked() -> None:
    global _generation
    _generation += 1


os.register_at_fork(after_in_child=_forked)


def generation() -> int:
    """How many forks lie between this process and the one that imported RMQ."""
    return _generation


class Lane:
    """One caller's line of numbered commands."""

    __slots__ = ("name", "number")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.number = 0


class Lanes:
    """The lanes of one client. Threads and tasks take one each for the time of a command.

    A forked child starts its own: two processes that number commands in one lane would be given
    each other's answers.
    """

    __slots__ = ("_free", "_generation", "_made", "_stem")

    def __init__(self) -> None:
        self._free: deque[Lane] = deque()
        self._start()

    def _start(self) -> None:
        self._generation = _generation
        self._stem = os.urandom(9).hex().encode()
        self._made = itertools.count(1)  # next() is one step, so no two threads get one name
        self._free = deque()

    @contextmanager
    def one(self) -> Iterator[Lane]:
        """A lane nobody else is in, at its next number."""
        lane = self.take()
        try:
            yield lane
        finally:
            self.give(lane)

    def take(self) -> Lane:
        """A lane nobody else is in, at its next number; `give` it back after the reply."""
        if self._generation != _generation:
            self._start()
        try:
            lane = self._free.pop()
        except IndexError:
            lane = Lane(b"%s-%d" % (self._stem, next(self._made)))
        lane.number += 1
        return lane

    def give(self, lane: Lane) -> None:
        """Hand a lane back."""
        if lane.name.startswith(self._stem):
            self._free.append(lane)


class Handle:
    """A topic as one client sees it. Nothing is read from Redis until it is opened."""

    def __init__(
        self,
        prefix: str,
        name: object,
        codec: Codec,
        lanes: Lanes,
        asked: Mapping[str, object],
        hooks: Hooks | None = None,
    ) -> None:
        self.name = check_name(name, "topic")
        self.prefix = prefix
        self.codec = codec
        self.lanes = lanes
        self.hooks = hooks or Hooks()
        self.asked: dict[str, Any] = settings.checked(asked)
        self.check = ids.topic_check(prefix, self.name)
        self.key = topic_key(prefix, self.name)
        self.topics_key = topics_key(prefix)
        self.channel = wake_channel(prefix, self.name)
        self.created = b""
        self.revision = 0  # how often the settings had been changed when they were read
        self.read_at = 0.0  # and when that was, by the monotonic clock
        self.is_ready = False
        self._settings: Settings | None = None
        self._slots: list[SlotKeys] = []
        self._spread: Spread | None = None

    @property
    def is_open(self) -> bool:
        """Whether the settings have been read."""
        return self._settings is not None

    @property
    def settings(self) -> Settings:
        """The settings in Redis; only once open."""
        assert self._settings is not None, "open first"
        return self._settings

    @property
    def slots(self) -> list[SlotKeys]:
        """The keys of each slot, by index; only once open."""
        return self._slots

    @property
    def spread(self) -> Spread:
        """Deals slots to messages without a basis; only once open."""
        assert self._spread is not None, "open first"
        return self._spread

    def opened(
        self, found: Settings, created: bytes, ready: bool = True, revision: int = 0
    ) -> None:
        """Take note of what is in Redis; `ready`: every slot has what its scripts read."""
        self._slots = [SlotKeys(self.prefix, self.name, i, created) for i in range(found.slots)]
        self._spread = Spread(found.slots, int.from_bytes(os.urandom(2), "big"))
        self.created = created
        self.revision = revision
        self.read_at = time.monotonic()
        self.is_ready = ready
        self._settings = found

    def forget(self) -> None:
        """Read the settings again before the next command."""
        self._settings = None
        self.is_ready = False

    def own_id(self, value: MessageId | bytes | str, field: str = "id") -> MessageId:
        """An id that can be of this topic; only once open.

        Raises:
            InvalidValue: it is of another topic, or of a slot that this one does not have.
        """
        message_id = MessageId.parse(value, field)
        if message_id.check != self.check:
            raise InvalidValue(f"{field}: {message_id} is of another topic than {self.name!r}")
        if message_id.slot >= len(self._slots):
            raise InvalidValue(
                f"{field}: {message_id} is of slot {message_id.slot}; "
                f"topic {self.name!r} has {len(self._slots)}"
            )
        return message_id
