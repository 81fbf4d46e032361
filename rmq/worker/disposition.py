"""Dispositions: how a delivery is settled after its run, and how that is decided."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from rmq.client.handler import Handler
from rmq.core import failure
from rmq.core.delivery import SETTLED, DeliveryData, Reject, Retry, Snooze
from rmq.core.interceptor import Outcome
from rmq.core.retry import Policy, draw_wait_ms
from rmq.core.validation import TEN_YEARS_MS, duration_ms
from rmq.errors import DecodeError, RMQError

log = logging.getLogger("rmq")


class Disposition(NamedTuple):
    """How a delivery is settled after its run."""

    verb: Literal["ack", "nack", "reject", "release"]
    wait_s: float | None = None  # until it comes back; None: the topic's policy
    error: BaseException | str | None = None
    kind: str = "r"  # of a rejection: r by the handler, u the body does not fit, n no handler


ACK = Disposition("ack")
DONE_BEFORE = Disposition("ack")  # a duplicate: the work was done by an earlier run
RELEASE = Disposition("release", 0.0)

Settled = tuple[DeliveryData, Disposition]


class Overrun(NamedTuple):
    """A run that exceeded its max_runtime, and the deliveries that wait behind it in order."""

    delivery: DeliveryData
    max_runtime_s: float
    rest: Sequence[DeliveryData] = ()


class Halt:
    """An ordered run that cannot go on: the failed delivery, and the rest, released before it."""

    def __init__(
        self, failed: tuple[DeliveryData, Disposition] | None, rest: list[DeliveryData]
    ) -> None:
        self.failed = failed
        self.rest = rest


class RuntimeExceeded(RMQError):
    """A handler ran for longer than its max_runtime."""


def runtime_exceeded(seconds: float) -> RuntimeExceeded:
    """Return the error that is kept with a message whose handler ran too long."""
    return RuntimeExceeded(
        f"the handler was still running after max_runtime, {seconds:g} s; it counts as failed"
    )


def disposition_for(handler: Handler, delivery: DeliveryData, error: BaseException) -> Disposition:
    """Decide how a delivery is settled whose handler raised."""
    try:
        rule = handler.rule_for(error, delivery)
        if isinstance(rule, Snooze):
            return Disposition("release", _seconds(rule.delay))
        if isinstance(rule, Reject):
            return Disposition("reject", None, _reject_reason(rule, error))
        if isinstance(rule, Retry):
            reason = error if rule is not error else (error.__cause__ or "asked for a retry")
            return Disposition("nack", None if rule.delay is None else _seconds(rule.delay), reason)
        if isinstance(rule, Policy):
            return Disposition("nack", draw_wait_ms(rule, delivery.attempt) / 1000, error)
    except Exception:
        log.exception(
            "%s: its retry rule failed for %s; the topic's policy applies", handler, delivery.id
        )
    return Disposition("nack", None, error)


def undecodable(error: DecodeError) -> Disposition:
    """Reject a delivery whose body does not fit the handler: it goes to the DeadQueue at once."""
    return Disposition("reject", None, failure.text_of(error), "u")


def _reject_reason(rule: Reject, error: BaseException) -> BaseException | str:
    """Return the reason kept with the dead letter, and the error that a rule was applied to."""
    reason = failure.text_of(rule)
    if rule is error:
        return reason or "rejected"
    if not reason:
        return error
    rejection = Reject(reason)  # a copy: a rule is one object for many errors
    rejection.__cause__ = error
    return rejection


def _seconds(delay: Any) -> float:
    return duration_ms(delay, "delay", high_ms=TEN_YEARS_MS, zero=True) / 1000


def outcome_of(
    delivery: DeliveryData, disposition: Disposition, seconds: float, raised: BaseException | None
) -> Outcome:
    """Return the outcome of a run, for the hooks."""
    error = None if isinstance(raised, Snooze) else raised
    if delivery.lost:
        return Outcome("lost", seconds, error)
    return Outcome("own" if delivery._state == SETTLED else disposition.verb, seconds, error)
