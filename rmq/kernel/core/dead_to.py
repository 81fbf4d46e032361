"""Read and write the setting `dead_to` of a topic.

The setting names another topic that gets a copy of each message that becomes a dead letter.
"""

from __future__ import annotations

from dataclasses import dataclass

from rmq.kernel.core.keys import SLOTS_MAX, check_name
from rmq.kernel.core.validation import check_int

OFF = "off"


@dataclass(frozen=True, slots=True)
class DeadTo:
    """The topic that gets copies of dead letters.

    Args:
        topic: Name of the topic.
        slots: Number of slots of this topic when RMQ stored the setting, or 0 before that.
    """

    topic: str
    slots: int = 0

    def __str__(self) -> str:
        return self.topic

    def to_redis(self) -> str:
        """Return the setting `dead_to` as the string that Redis stores."""
        return f"{self.topic}:{self.slots}"

    def of_slot(self, index: int) -> str:
        """Return the name of the slot of the other topic that gets copies of dead letters.

        Args:
            index: Index of the slot of this topic that has the dead letters.
        """
        return f"{self.topic}:{index % max(1, self.slots)}"


def parse(value: object) -> DeadTo | None:
    """Read the setting `dead_to` from the name of a topic. None and "off" turn the setting off."""
    if value is None or value == OFF:
        return None
    return value if isinstance(value, DeadTo) else DeadTo(check_name(value, "dead_to"))


def from_redis(text: str) -> DeadTo | None:
    """Read the setting `dead_to` from the string that Redis stores."""
    if text == OFF:
        return None
    topic, _, slots = text.rpartition(":")
    return DeadTo(check_name(topic, "dead_to"), check_int(int(slots), "dead_to", 0, SLOTS_MAX))
