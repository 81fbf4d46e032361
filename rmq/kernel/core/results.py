"""Results: how long the outcome of a message is kept, and the header that asks for it."""

from __future__ import annotations

from dataclasses import dataclass

from rmq.kernel.core.validation import Duration, duration_ms

# Header of a message that keeps its result: seconds, as text. It is the first header, or the second
# after the header of rmq.Audit, so that scripts find it without unpacking the headers.
KEEP_MARK = "rmq-keep"
KEEP_MOST_S = 30 * 86_400
VALUE_BYTES = 256 * 1024  # largest encoded value of a handler


def keep_seconds(value: object, field: str = "keep_result") -> int:
    """Return the time for which a result is kept, in whole seconds, rounded up.

    Raises:
        InvalidType, InvalidValue: The time is not a duration, or is not 1 s to 30 days.
    """
    return -(-duration_ms(value, field, 1000, KEEP_MOST_S * 1000) // 1000)


@dataclass(frozen=True, slots=True)
class Results:
    """Keeps the result of each message that this program sends to a topic.

    A result says how the message ended, and has the return value of its handler. This is an option
    of your program's topic object, like `codec`. Redis does not store it with the topic.

    Args:
        keep: How long a result is kept after the message has ended, seconds or timedelta, 1 s to 30
            days.
    """

    keep: Duration = 3600

    def __post_init__(self) -> None:
        """Check the time."""
        keep_seconds(self.keep, "results.keep")

    @property
    def seconds(self) -> int:
        """Time for which a result is kept, in whole seconds."""
        return keep_seconds(self.keep, "results.keep")
