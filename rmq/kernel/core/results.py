"""Ask RMQ to keep the result of a message.

A result says how a message ended. A header of the message says how long RMQ keeps the result.
"""

from __future__ import annotations

from dataclasses import dataclass

from rmq.kernel.core.validation import Duration, duration_ms

# Header of a message that keeps its result: seconds, as text. It is the first header, or the second
# after the header of rmq.Audit, so that scripts find it without unpacking the headers.
KEEP_MARK = "rmq-keep"
# Header of a member of a batch, behind the mark above: topic and slot of the batch, its name, and
# the member's first id, with spaces between them.
BATCH_MARK = "rmq-batch"
KEEP_MAX_S = 30 * 86_400
VALUE_BYTES = 256 * 1024  # largest encoded value of a handler


def keep_seconds(value: object, field: str = "keep_result") -> int:
    """Convert the time for which RMQ keeps a result to whole seconds, rounded up.

    Raises:
        InvalidType, InvalidValue: The time is not a duration, or is not 1 s to 30 days.
    """
    return -(-duration_ms(value, field, 1000, KEEP_MAX_S * 1000) // 1000)


@dataclass(frozen=True, slots=True)
class Results:
    """Keeps the result of each message that this program sends to a topic.

    A result says how the message ended, and has the return value of its handler. Pass this object
    to `Client.topic`, as you do with a `codec`. Redis does not store this option with the topic.

    Args:
        keep: Time for which RMQ keeps a result after the message has ended, seconds or timedelta, 1
            s to 30 days.
    """

    keep: Duration = 3600

    def __post_init__(self) -> None:
        """Check that the time is a duration of 1 s to 30 days."""
        keep_seconds(self.keep, "results.keep")

    @property
    def seconds(self) -> int:
        """Time for which RMQ keeps a result, in whole seconds."""
        return keep_seconds(self.keep, "results.keep")
