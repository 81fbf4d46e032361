"""Store the results of deliveries with their acks, and the progress of running handlers.

A result says how a message ended. RMQ keeps the result for a time if the sender asks for this.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from rmq.errors import ConfigurationError, EncodeError, InvalidType, InvalidValue
from rmq.kernel.consumer.settle import ConsumerPart, open_leases
from rmq.kernel.core import failure, record
from rmq.kernel.core.codec import Codec, Offloaded
from rmq.kernel.core.results import VALUE_BYTES
from rmq.kernel.delivery.inner_delivery import InnerDelivery
from rmq.kernel.results import scripts
from rmq.kernel.results.entry import (
    HANDED_OVER,
    NOT_ENCODABLE,
    TOO_LARGE,
    Kind,
    encode_progress,
    encode_success,
)
from rmq.kernel.results.scripts import ProgressReply
from rmq.kernel.topic import clock
from rmq.kernel.transport.flow.steps import Flow

PROGRESS_S = 1.0  # shortest time between two reports of a delivery
TEXT_CHARS = 200


def encode(codec: Codec, delivery: InnerDelivery, value: object) -> tuple[bytes, str]:
    """Encode the result of a delivery that succeeded.

    Args:
        codec: Codec of the topic. A value is never put into an object store.
        delivery: The delivery.
        value: Value to store, or None for no value.

    Returns:
        The encoded result, and an error text if the value cannot be stored, else ''.
    """
    kind, data, problem = encode_value(codec, value)
    return _success(delivery, kind, data), problem


def _success(delivery: InnerDelivery, kind: Kind = None, data: bytes = b"") -> bytes:
    started_ms = 0
    if delivery.started:
        started_ms = clock.now_ms() - round((time.monotonic() - delivery.started) * 1000)
    return encode_success(failure.this_worker(), delivery.attempt, started_ms, kind, data)


def encode_value(codec: Codec, value: object) -> tuple[Kind, bytes, str]:
    """Encode a value that a handler returned. The limit is 256 KiB.

    The value is stored in Redis, never in an object store.

    Returns:
        The number of the codec, the encoded value, and an error text if the value cannot be stored,
            else ''.
    """
    if value is None:
        return None, b"", ""
    codec = codec.inner if isinstance(codec, Offloaded) else codec
    try:
        data = codec.encode(value)
    except EncodeError as error:
        return NOT_ENCODABLE, b"", str(error)
    except Exception as error:  # of a codec of the user: the message has succeeded nevertheless
        return NOT_ENCODABLE, b"", failure.summary(error)
    if len(data) > VALUE_BYTES:
        return TOO_LARGE, b"", f"{len(data)} bytes; at most {VALUE_BYTES} are kept"
    return codec.number, data, ""


class DeliveryResults(ConsumerPart):
    """The results and the progress of a consumer's deliveries."""

    def of(self, deliveries: Sequence[InnerDelivery]) -> tuple[list[bytes], int]:
        """Return the encoded results of deliveries, and how long Redis keeps the results.

        Returns:
            The result of each delivery, or an empty list if no message keeps its result. Then the
                time in seconds, or 0 if the results have different times.
        """
        keeps = [d.record[0] & record.HEADERS and record.keep_of(d.record) for d in deliveries]
        times = {*keeps} - {0}
        pairs = zip(deliveries, keeps, strict=True)
        if self._at_most_once:  # batches also count how their members have ended
            given = [
                HANDED_OVER if keep or record.is_member(d.record) else b"" for d, keep in pairs
            ]
        elif times:
            given = [(d.result or _success(d)) if keep else b"" for d, keep in pairs]
        else:
            return [], 0
        keep_s = times.pop() if len(times) == 1 else 0
        if keep_s and any(record.is_member(d.record) for d in deliveries):
            keep_s = 0  # the script must read the batches of members from their records
        return (given, keep_s) if any(given) else ([], 0)

    def set_value(self, delivery: InnerDelivery, value: object) -> None:
        """Set the value that the ack of a delivery stores.

        If the message does not keep its result, nothing is stored.
        """
        if delivery.keeps_result:
            delivery.result, _ = encode(self._context.codec, delivery, value)

    def check_progress(self, fraction: object, text: object) -> None:
        """Check the arguments of `progress`, and whether the consumer's deliveries have leases."""
        if isinstance(fraction, bool) or not isinstance(fraction, int | float):
            raise InvalidType(f"fraction: {type(fraction).__name__}; give a number from 0 to 1")
        if not 0 <= fraction <= 1:
            raise InvalidValue(f"fraction: {fraction!r}; give a number from 0 to 1")
        if not isinstance(text, str):
            raise InvalidType(f"text: {type(text).__name__}; give a str")
        if self._at_most_once:
            raise ConfigurationError(
                "progress: an at_most_once delivery is settled when it is handed over, so its "
                "result is stored already. Use mode='at_least_once'"
            )

    def progress(
        self, delivery: InnerDelivery, fraction: float, text: str
    ) -> Flow[list[InnerDelivery]]:
        """Store the progress of a delivery.

        Returns:
            A list with the delivery if its lease was lost, otherwise an empty list.
        """
        open_leases(self._context, [delivery])  # checks that it is unsettled and of this topic
        delivery.progress_at = time.monotonic() + PROGRESS_S
        shown = text[:TEXT_CHARS].encode("utf-8", "replace").decode()
        details = encode_progress(float(fraction), shown, delivery.attempt, failure.this_worker())
        keys = delivery.origin.keys
        reply = yield scripts.progress(keys, delivery.raw_id, delivery.score, details)
        if reply == ProgressReply.CANCELLED:
            delivery.cancelled().set()
        return self._note_codes([delivery], "0") if reply == ProgressReply.LOST else []
