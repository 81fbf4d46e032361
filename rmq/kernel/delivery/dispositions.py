"""Define exceptions and return values by which a handler or a `with` block settles a delivery."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rmq.errors import Cancelled, InvalidType, InvalidValue, PayloadTooLarge, RMQError
from rmq.kernel.core.message import Outgoing
from rmq.kernel.core.steps import check_event_key
from rmq.kernel.core.validation import TEN_YEARS_MS, Duration, duration_ms
from rmq.kernel.delivery.inner_delivery import InnerDelivery

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
    """Return value of a handler that sends messages in the same step as the ack.

    If the ack succeeds, the messages are sent exactly once. If the ack fails, they are never sent.
    A handler of batches cannot return a `Then`.

    Args:
        result: The handler's own return value, or None if it has none.
        follow_ups: Messages to send. Each is an rmq.Outgoing for the topic of the delivery, or a
            pair of a topic and an rmq.Outgoing.

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
    """Exception that postpones a message. The message loses no retry.

    Raise this exception in a handler or in `with delivery`.

    Args:
        delay: Wait before the next delivery, seconds or timedelta.
    """

    def __init__(self, delay: Duration) -> None:
        super().__init__(delay)
        self.delay = delay


class WaitFor(Snooze):
    """Exception that suspends a message until an event is signalled.

    Raise this exception in a handler or in `with delivery`. `client.signal(key)` ends the wait. The
    handler then runs again from the beginning, and finds the event in `d.events`. The message loses
    no retry.

    Args:
        key: Key of the event, a text of 1 to 255 bytes.
        timeout: Time limit, seconds or timedelta, at most 10 years. After this time, the message is
            delivered again, with an event whose attribute `timed_out` is True.

    Raises:
        InvalidType, InvalidValue: The key or the time limit is not valid.
    """

    def __init__(self, key: str, timeout: Duration) -> None:
        super().__init__(timeout)
        self.key = key
        self.event = check_event_key(key)
        duration_ms(timeout, "timeout", high_ms=TEN_YEARS_MS)  # an error is raised at this line


def wait_problem(delivery: InnerDelivery, event: bytes, most: int) -> RMQError | None:
    """Return an error if the message of a delivery cannot wait for an event, else None.

    Args:
        delivery: The delivery.
        event: Key of the event.
        most: Maximum size of the steps and events of a message, in bytes.
    """
    key = event.decode()
    found = (delivery.events or {}).get(key)
    if found is not None and not found.timed_out:
        return InvalidValue(
            f"key: {delivery.id} has got the event {key!r} already; read it in d.events, and raise "
            "rmq.WaitFor only for a key that is not there"
        )
    if delivery.entry_bytes > most:
        return PayloadTooLarge(
            f"the steps and events of {delivery.id} have {delivery.entry_bytes} bytes, more than "
            f"{most}, so it cannot wait for another event; see step_bytes of client.topic"
        )
    return None


class Reject(Exception):
    """Exception that makes a message a dead letter.

    Raise this exception in a handler or in `with delivery`.

    Args:
        reason: Reason that is stored with the dead letter. Default: the error in `raise
            rmq.Reject() from error`, with its traceback, or "rejected".
        then: Messages to send exactly once, in the same step. Each is an rmq.Outgoing for the topic
            of the delivery, or a pair of a topic and an rmq.Outgoing. In a handler of batches, they
            are sent once for each rejected message.
    """

    def __init__(self, *reason: Any, then: Iterable[FollowUp] = ()) -> None:
        super().__init__(*reason)
        self.then = tuple(then)
        with_topics(self.then, "")  # an error is raised at the line that makes this object


class Retry(Exception):
    """Exception that gives a message back because its handling failed.

    Raise this exception in a handler or in `with delivery`. The message loses a retry.

    Args:
        delay: Wait before the retry, seconds or timedelta. None uses the retry policy.
    """

    def __init__(self, delay: Duration | None = None) -> None:
        super().__init__() if delay is None else super().__init__(delay)
        self.delay = delay


DISPOSITIONS = (Snooze, Retry, Reject, Cancelled)  # a block that raises one ends without an error
