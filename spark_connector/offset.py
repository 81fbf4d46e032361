"""Read and write the offsets in Spark's checkpoint.

An offset has the query's name, and a position for each topic. A position has the last sequence
number of each slot (part of the topic). Spark compares offsets as JSON text. So the keys have a
fixed order, and RMQ returns an unchanged offset as it received it. The field `held` is the number
of messages in the batch that ends at the offset. RMQ cannot compute this number from the sequence
numbers, because numbers can be missing after a lease has expired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rmq.errors import ConfigurationError

VERSION = 2  # version 1 had one topic
# Text for errors. It names a new output path, because a file sink identifies batches by number
# only, so with the old path it drops batches of a new query.
ANEW = "a new checkpoint together with a new output path"

Numbers = dict[int, int]  # by slot


class Position(NamedTuple):
    """The end of a batch in one topic.

    For each slot (part of the topic), it has the last sequence number and the number of messages.
    """

    slots: Numbers
    held: Numbers

    @property
    def messages(self) -> int:
        """Number of messages that the batch has from this topic."""
        return sum(self.held.values())


class Offset(NamedTuple):
    """An offset that was read from the text in the checkpoint."""

    run: str
    topics: dict[str, Position]

    @property
    def messages(self) -> int:
        """Number of messages in the batch that ends at this offset."""
        return sum(at.messages for at in self.topics.values())

    def slots(self, topic: str) -> Numbers:
        """Return each slot's last sequence number.

        If the topic was not read yet, the result is empty.
        """
        return self.topics[topic].slots if topic in self.topics else {}

    def spell(self) -> dict[str, Any]:
        """Return the offset as Spark writes it to the checkpoint."""
        return {
            "v": VERSION,
            "run": self.run,
            "topics": {
                name: {
                    "slots": {str(slot): at.slots[slot] for slot in sorted(at.slots)},
                    "held": {str(slot): n for slot, n in sorted(at.held.items()) if n},
                }
                for name, at in sorted(self.topics.items())
            },
        }


def _numbers(given: Any) -> Numbers:
    return {int(slot): int(number) for slot, number in given.items()}


def read(given: Any) -> Offset:
    """Parse an offset from the checkpoint.

    Raises:
        ConfigurationError: The text is not an offset of this source, or a later version of RMQ
            wrote it.
    """
    try:
        version, run = given["v"], given["run"]
        topics = {given["topic"]: given} if version == 1 else given.get("topics", {})
        offset = Offset(
            run,
            {
                name: Position(_numbers(at["slots"]), _numbers(at["held"]))
                for name, at in topics.items()
            },
        )
    except (TypeError, KeyError, ValueError, AttributeError):
        raise ConfigurationError(
            f"checkpoint: {str(given)[:100]!r} is not an offset of RMQ; give the query {ANEW}"
        ) from None
    if version not in (1, VERSION):
        raise ConfigurationError(
            f"checkpoint: it was written in format {version!r} and this RMQ reads {VERSION}; use "
            "the RMQ that wrote it"
        )
    return offset


def not_subscribed(topic: str, subscribed: str) -> ConfigurationError:
    """Return the error for a topic of the checkpoint that the query no longer reads."""
    return ConfigurationError(
        f"checkpoint: it has topic {topic!r}, and subscribe names {subscribed!r}; add it to "
        f"subscribe, or give the query {ANEW}"
    )


def check_slots(slots: Mapping[int, int], count: int, topic: str) -> None:
    """Raise an error if a topic was created again with fewer slots (parts).

    Raises:
        ConfigurationError: The topic has fewer slots than the checkpoint.
    """
    if len(slots) > count:
        raise ConfigurationError(
            f"checkpoint: topic {topic!r} has {count} slots in Redis and {len(slots)} in "
            f"the checkpoint, so it was created again; give the query {ANEW}"
        )


def check_age(slots: Mapping[int, int], settled: Sequence[int], topic: str) -> None:
    """Raise an error if the checkpoint is older than a settled batch.

    With an old checkpoint, Spark would use the same batch numbers again. A sink that identifies
    batches by their numbers would drop the next batches. RMQ would then settle these batches, and
    their messages would be lost.

    Raises:
        ConfigurationError: The query has settled messages after this offset.
    """
    ahead = sum(max(0, number - slots.get(slot, 0)) for slot, number in enumerate(settled))
    if ahead:
        raise ConfigurationError(
            f"checkpoint: it is an older copy; {ahead} messages of topic {topic!r} that came after "
            "it were settled by its query, or given back. Sinks would drop new batches, which have "
            "numbers they know; nothing was taken. Give the query its newest checkpoint, or "
            f"{ANEW}. With asyncProgressTrackingEnabled Spark itself leaves such a checkpoint "
            "behind: switch it off"
        )
