"""The state of a topic in one client: name, keys, and the settings once they are read."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from rmq.core import ids, settings
from rmq.core.codec import Codec
from rmq.core.ids import MessageId
from rmq.core.interceptor import Hooks
from rmq.core.keys import (
    SlotKeys,
    check_name,
    history_key,
    topic_key,
    topics_key,
    wake_channel,
)
from rmq.core.replay_session import ReplaySessions
from rmq.core.settings import Settings
from rmq.core.slots import SlotRotation
from rmq.errors import ConfigurationError, InvalidValue

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
        self.requested: dict[str, Any] = settings.check(requested)
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
        self.had_large = False  # whether this client has received a large body of it
        self._settings: Settings | None = None
        self._slots: list[SlotKeys] = []
        self._spread: SlotRotation | None = None

    @property
    def is_open(self) -> bool:
        """Whether the settings have been read."""
        return self._settings is not None

    @property
    def settings(self) -> Settings:
        """The settings in Redis; only of an open topic."""
        if self._settings is None:
            raise ConfigurationError(
                f"topic {self.name!r} has not been opened, so its settings are not known; call "
                "open() first, or Admin.topic_settings"
            )
        return self._settings

    @property
    def slots(self) -> list[SlotKeys]:
        """The keys of each slot that may hold messages, by index; only of an open topic."""
        return self._slots

    @property
    def spread(self) -> SlotRotation:
        """The rotation of slots for messages without a basis; only of an open topic."""
        assert self._spread is not None, "open the topic first"
        return self._spread

    def mark_open(
        self, settings: Settings, created: bytes, ready: bool = True, revision: int = 0
    ) -> None:
        """Take note of the settings in Redis, and of the topic's stamp.

        `ready`: every slot has its fields.
        """
        stamp = settings.slot_stamp(created)
        self._slots = [
            SlotKeys(self.prefix, self.name, i, stamp) for i in range(settings.all_slots)
        ]
        self._spread = SlotRotation(settings.slots, int.from_bytes(os.urandom(2), "big"))
        self.created, self.identity = stamp, created
        self.revision = revision
        self.read_at = time.monotonic()
        self.is_ready = ready
        self._settings = settings

    def is_old(self) -> bool:
        """Whether the settings were read so long ago that they are to be read again."""
        return time.monotonic() - self.read_at >= FOLLOW_S

    def is_current(self) -> bool:
        """Whether the topic can be used as it is: its slots are ready, its settings not old."""
        return self.is_ready and time.monotonic() - self.read_at < FOLLOW_S

    def forget(self) -> None:
        """Read the settings again before the next command."""
        self._settings = None
        self.is_ready = False

    def check_id(self, value: MessageId | bytes | str, field: str = "id") -> MessageId:
        """Return an id if it can belong to this topic, which must be open.

        Raises:
            InvalidValue: it is of another topic, or of a slot that this topic does not have.
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
