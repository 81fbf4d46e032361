"""Store the data that one client has about a topic: its name, keys, settings and slots."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rmq.errors import ConfigurationError, InvalidValue
from rmq.kernel.core import ids, record, settings as core_settings
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
from rmq.kernel.core.steps import ENTRY_BYTES
from rmq.kernel.topic.sessions import ReplaySessions
from rmq.kernel.topic.slot_choice import slot_rotation

FOLLOW_S = 30.0  # largest age of a client's copy of the settings


class TopicContext:
    """The data that one client has about a topic.

    The settings are unknown until the client opens the topic, which means that it reads them from
    Redis.
    """

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
        self.created = b""  # stamp of the slots: `identity` plus 1 us for each resize
        self.identity = b""  # stamp of the topic
        self.revision = 0  # number of changes of the settings, when they were read
        self.fresh_until = 0.0  # monotonic time at which the settings must be read again
        self.current_until = 0.0  # like `fresh_until`; 0: open the topic before its next use
        self.full_until = 0.0  # monotonic time until which all slots are taken as full
        self.is_ready = False
        self.siblings: Iterable[TopicContext] = ()  # contexts of topics that the program declared
        self.result_signals: Any = None  # of the client (rmq.kernel.results.signals)
        # Topics of follow-ups by name, and whether the program has declared each topic.
        self.targets: dict[str, tuple[TopicContext, bool]] = {}
        self.sends: dict[Any, Any] = {}  # durability -> Coalescer of its sends
        self.keep_s = 0  # seconds for which results are kept, unless a send says otherwise
        self.step_bytes = ENTRY_BYTES  # limit for the steps of a message
        self.had_pending = False  # whether this client has seen pending follow-ups of the topic
        self.had_large = False  # whether this client has received a large body from the topic
        self.keeps_results = False  # whether Redis has said that a slot of the topic keeps results
        self._is_open = False
        # Only of an open topic:
        self.settings: Settings  # read from Redis
        self.slots: list[SlotKeys] = []  # slots that may have messages, by index
        self.spread: Iterator[int]  # next slots for messages without a basis
        # Bodies of a call that together have at least this size are stored apart from records.
        self.large_bytes_min = record.MIN_BYTES_OF_CALL

    @property
    def is_open(self) -> bool:
        """Whether the settings have been read and need not be read again."""
        return self._is_open

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise an error if a program uses settings that have not been read yet.

            Python calls this method only for missing attributes.
            """
            if name == "settings":
                raise ConfigurationError(
                    f"topic {self.name!r} has not been opened, so its settings are not known; call "
                    "open() first, or Admin.topic_settings"
                )
            raise AttributeError(f"TopicContext has no attribute {name!r}")

    def open_with(
        self, settings: Settings, created: bytes, ready: bool = True, revision: int = 0
    ) -> None:
        """Store the topic's settings, and the creation time that identifies the topic in Redis.

        The argument `ready` says whether every slot has these settings.
        """
        stamp = settings.slot_stamp(created)
        self.slots = [SlotKeys(self.prefix, self.name, i, stamp) for i in range(settings.all_slots)]
        # If the topic has limits for each key, a receive reads many records.
        self.large_bytes_min = record.MIN_BYTES if settings.limit.key else record.MIN_BYTES_OF_CALL
        self.spread = slot_rotation(settings.slots, int.from_bytes(os.urandom(2), "big"))
        self.created, self.identity = stamp, created
        self.revision = revision
        self.settings = settings
        self.had_pending |= settings.dead_to is not None
        self._is_open = True
        self.is_ready = ready
        self.keep_settings()

    def keep_settings(self, seconds: float | None = None) -> None:
        """Use the settings for a number of seconds before they are read again.

        Default: FOLLOW_S.
        """
        self.fresh_until = time.monotonic() + (FOLLOW_S if seconds is None else seconds)
        self.current_until = self.fresh_until if self.is_ready else 0.0

    def is_old(self) -> bool:
        """Whether the settings are so old that they must be read again."""
        return time.monotonic() >= self.fresh_until

    def forget(self) -> None:
        """Make the next command read the topic's settings again.

        Until then, other threads and tasks use the old settings. This is safe, because scripts
        refuse calls for an earlier topic with the same name.
        """
        self._is_open = self.is_ready = False
        self.current_until = 0.0

    def may_have(self, value: object) -> bool:
        """Return whether a value is a message id with a slot that this client does not know yet.

        Another program may have resized the topic.
        """
        try:
            message_id = MessageId.parse(value)  # type: ignore[arg-type]
        except InvalidValue:
            return False
        return message_id.check == self.check and message_id.slot >= len(self.slots)

    def check_id(self, value: MessageId | bytes | str, field: str = "id") -> MessageId:
        """Check that a message id can belong to this topic, and return the id.

        Read the topic's settings before you call this method.

        Raises:
            InvalidValue: The id belongs to another topic, or to a slot that this topic does not
                have.
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
