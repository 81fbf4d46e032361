"""Remember which steps of a message's work are done, so that a retry does not repeat them.

A step is a named part of a handler's work. A handler may also save a cursor, which says how much of
the work is done.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from rmq.errors import ConfigurationError, EncodeError, InvalidValue, PayloadTooLarge
from rmq.kernel.consumer.results import encode_value
from rmq.kernel.consumer.settle import ConsumerPart, open_leases
from rmq.kernel.core import steps as core_steps
from rmq.kernel.core.score import moment
from rmq.kernel.core.steps import (
    BEGUN,
    CURSOR,
    DONE,
    LOST,
    Step,
    decode_steps,
    split_events,
    value_of,
)
from rmq.kernel.delivery.dispositions import Reject
from rmq.kernel.delivery.inner_delivery import InnerDelivery
from rmq.kernel.results import scripts
from rmq.kernel.results.scripts import StepCode, StepReply
from rmq.kernel.topic import clock
from rmq.kernel.transport.flow.steps import Flow


class StepStart(NamedTuple):
    """The result of `DeliverySteps.begin`.

    Attributes:
        lost: A list with the delivery if its lease was lost, otherwise an empty list.
        is_done: Whether an earlier attempt has done the step.
        value: Value that the step returned in the earlier attempt.
    """

    lost: list[InnerDelivery]
    is_done: bool = False
    value: Any = None


class DeliverySteps(ConsumerPart):
    """Reads and writes the steps of a consumer's deliveries.

    Each delivery reads its steps only once, because no other delivery can write them while its
    receipt is valid.
    """

    def begin(self, delivery: InnerDelivery, name: str) -> Flow[StepStart]:
        """Record that a step (a part of the handler's work) begins, unless it is already done.

        Raises:
            InvalidValue: This attempt has already called a step of this name.
            Reject: An earlier attempt has done the step, but RMQ could not store its value. Also
                raised if the message has no room for another step.
        """
        encoded, called = core_steps.check_name(name), delivery.steps_called
        if name in called:
            raise InvalidValue(
                f"name: this attempt has called the step {name!r} before; give each step of a "
                "handler a name of its own, for example f'page {number}' in a loop"
            )
        found = (delivery.steps or {}).get(name)
        if found is None or found.state == "begun":
            code = yield from self._write(delivery, BEGUN, encoded)
            if code == StepCode.LOST:
                return StepStart(self._note_codes([delivery], "0"))
            if code == StepCode.CANCELLED:
                delivery.cancelled().set()
                return StepStart([])
            if code == StepCode.FULL:
                raise Reject(
                    f"step {name!r} did not run, because the steps of the message have no room: "
                    f"at most {core_steps.STEPS_MAX}, and {self._context.step_bytes} bytes, see "
                    "step_bytes of client.topic"
                )
            found = (delivery.steps or {}).get(name)
        delivery.steps_called = called | {name}
        if found is None or found.state == "begun":
            return StepStart([])
        if found.state == "lost":
            raise _value_lost(name, "when an earlier attempt had done it")
        return StepStart([], True, value_of(found, delivery.id))

    def end(self, delivery: InnerDelivery, name: str, value: object) -> Flow[list[InnerDelivery]]:
        """Store the value of a step (a part of the handler's work) that is done.

        Returns:
            A list with the delivery if its lease was lost, otherwise an empty list.

        Raises:
            Reject: The value could not be stored. The step will never run again.
        """
        encoded = name.encode()
        data, problem = self._data(value)
        code = StepCode.FULL
        if not problem:
            code = yield from self._write(delivery, DONE, encoded, data)
            if code == StepCode.FULL:
                problem = (
                    f"with its {len(data)} bytes, the steps of the message have more than "
                    f"{self._context.step_bytes} bytes, see step_bytes of client.topic"
                )
        if problem:
            code = yield from self._write(delivery, LOST, encoded)
        if code == StepCode.LOST:
            return self._note_codes([delivery], "0")
        if problem:
            raise _value_lost(name, problem)
        return []

    def save(self, delivery: InnerDelivery, cursor: object) -> Flow[list[InnerDelivery]]:
        """Store the cursor of a handler, which says how much of its work is done.

        Returns:
            A list with the delivery if its lease was lost, otherwise an empty list.

        Raises:
            EncodeError: The cursor cannot be encoded.
            PayloadTooLarge: The message has no room for the cursor.
        """
        data, problem = self._data(cursor)
        if problem:
            raise EncodeError(f"cursor: {problem}")
        code = yield from self._write(delivery, CURSOR, b"", data)
        if code == StepCode.FULL:
            raise PayloadTooLarge(
                f"cursor: with its {len(data)} bytes, the steps of {delivery.id} have more than "
                f"{self._context.step_bytes} bytes; save less, or give client.topic more step_bytes"
            )
        if code == StepCode.LOST:
            return self._note_codes([delivery], "0")
        delivery.steps = {
            **(delivery.steps or {}),
            "": Step("", "cursor", moment(clock.now_ms()), data),
        }
        return []

    def saved(self, delivery: InnerDelivery) -> Flow[tuple[list[InnerDelivery], Any]]:
        """Return the cursor that the handler saved last, which says how much of its work is done.

        Returns:
            A list with the delivery if its lease was lost, otherwise an empty list. Then the
                cursor.
        """
        if delivery.steps is None:
            code = yield from self._write(delivery, b"", b"")
            if code == StepCode.LOST:
                return self._note_codes([delivery], "0"), None
        cursor = (delivery.steps or {}).get("")
        return [], None if cursor is None else value_of(cursor, delivery.id)

    def _data(self, value: object) -> tuple[bytes, str]:
        if value is None:
            return b"", ""
        kind, data, problem = encode_value(self._context.codec, value)
        return (b"", problem) if not isinstance(kind, int) else (bytes((kind,)) + data, "")

    def _write(
        self, delivery: InnerDelivery, state: bytes, name: bytes, data: bytes = b""
    ) -> Flow[StepCode]:
        if self._at_most_once:
            raise ConfigurationError(
                "step: an at_most_once delivery is settled when it is handed over, so no later "
                "attempt continues its work. Use mode='at_least_once'"
            )
        open_leases(self._context, [delivery])  # checks that it is unsettled and of this topic
        is_first, keys = delivery.steps is None, delivery.origin.keys
        reply: StepReply = yield scripts.step(
            keys, delivery.raw_id, delivery.score, (state, name, data), self._context.step_bytes,
            is_first,
        )  # fmt: skip
        if is_first and reply.code != StepCode.LOST and delivery.steps is None:
            delivery.steps, _ = split_events(decode_steps(reply.entry))
        return reply.code


def _value_lost(name: str, reason: str) -> Reject:
    return Reject(
        f"step {name!r} is done, but its value could not be stored: {reason}. It will not run "
        "again: repair what it did, and redrive the message with --fresh to repeat all its steps"
    )
