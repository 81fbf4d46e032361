"""Define exceptions and return values by which a handler or a `with` block settles a delivery."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rmq.errors import Cancelled, InvalidType
from rmq.kernel.core.message import Outgoing
from rmq.kernel.core.validation import Duration

FollowUp = Outgoing | tuple[Any, Outgoing]  # a message, or a topic and a message


def _is_follow_up(value: object) -> bool:
    is_pair = isinstance(value, tuple) and len(value) == 2
    return isinstance(value[1] if is_pair else value, Outgoing)  # type: ignore[index]


def with_topics(follow_ups: Iterable[FollowUp], topic: str) -> list[tuple[Any, Outgoing]]:
    """Return follow-ups as pairs of a topic and a message.

    Args:
        follow_ups: Follow-ups, with or without a topic.
        topic: Topic of follow-ups that do not name a topic.

    Raises:
        InvalidType: A value is not a follow-up.
    """
    pairs = []
    for each in follow_ups:
        if not _is_follow_up(each):
            raise InvalidType(
                f"then: {type(each).__name__}; give rmq.Outgoing(body, ...), or a pair of a topic "
                "and an rmq.Outgoing"
            )
        pairs.append(each if isinstance(each, tuple) else (topic, each))
    return pairs


@dataclass(slots=True, init=False)
class Then:
    """Sends messages in the same step as the ack, if a handler returns it.

    As with `Delivery.then`, the messages are sent exactly once if the ack succeeds, and otherwise
    never. A handler of batches cannot return a `Then`.

    Args:
        result: The handler's own return value, or None if it has none.
        follow_ups: The messages: rmq.Outgoing for the topic of the delivery, or pairs of a topic
            and an rmq.Outgoing.

    Raises:
        InvalidType: A message has another type, or the first argument is a message to send.
    """

    result: Any
    follow_ups: tuple[FollowUp, ...]

    def __init__(self, result: Any, *follow_ups: FollowUp) -> None:
        if _is_follow_up(result):
            raise InvalidType(
                "Then: its first argument is the result of the handler, not a message to send; "
                "give rmq.Then(None, ...) if the handler has no result"
            )
        with_topics(follow_ups, "")  # an error is raised at the line that makes this object
        self.result = result
        self.follow_ups = follow_ups


class Snooze(Exception):
    """Raise it in a handler or `with delivery` to try again later, without using up a retry.

    Args:
        delay: Wait before the next delivery, seconds or timedelta.
    """

    def __init__(self, delay: Duration) -> None:
        super().__init__(delay)
        self.delay = delay


class Reject(Exception):
    """Raise it in a handler or `with delivery` to make the message a dead letter with a reason.

    Args:
        reason: Reason that is stored with the dead letter. Default: "rejected".
        then: Messages to send in the same step, exactly once. Each is an rmq.Outgoing for the topic
            of the delivery, or a pair of a topic and an rmq.Outgoing. In a handler of batches, they
            are sent once for each rejected message.
    """

    def __init__(self, *reason: Any, then: Iterable[FollowUp] = ()) -> None:
        super().__init__(*reason)
        self.then = tuple(then)
        with_topics(self.then, "")  # an error is raised at the line that makes this object


class Retry(Exception):
    """Raise it in a handler or `with delivery` to give the message back as failed.

    This uses up a retry.

    Args:
        delay: Wait before the retry, seconds or timedelta. None uses the retry policy.
    """

    def __init__(self, delay: Duration | None = None) -> None:
        super().__init__() if delay is None else super().__init__(delay)
        self.delay = delay


DISPOSITIONS = (Snooze, Retry, Reject, Cancelled)  # a block that raises one ends without an error
