"""HTTP routes that receive and settle messages."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from rmq.errors import EncodeError
from rmq.features.http_consumers.consumers import Verb
from rmq.http_framework.operation import RequestContext, Table
from rmq.http_framework.requests import Answer, Request, Seconds, Text, TopicPath
from rmq.kernel.core import codec, record
from rmq.kernel.core.access import Role
from rmq.kernel.core.score import moment, receipt_deadline_ms
from rmq.kernel.delivery.delivery import DeliveryData
from rmq.kernel.delivery.inner_delivery import InnerDelivery

WAIT_MAX_S = 20.0
SILENT_S = 15.0  # longest silence of a stream; then it sends an empty line
RECEIPT_CHARS = 8192
REASON = "given back over HTTP"

Lease = Annotated[float, Meta(ge=1, le=43_200)]
Receipt = Annotated[str, Meta(min_length=1, max_length=RECEIPT_CHARS)]
Receipts = Annotated[list[Receipt], Meta(min_length=1, max_length=1000)]
Encoding = Literal["json", "base64"]

TABLE = Table("deliveries")


class Receive(Request):
    """Options of a receive request.

    Attributes:
        max: Maximum number of messages.
        wait: Longest wait for the first message, in seconds. With 0, the request does not wait.
        lease: Seconds after which RMQ delivers an unsettled message again. Default: the topic's
            setting.
    """

    max: Annotated[int, Meta(ge=1, le=100)] = 1
    wait: Annotated[float, Meta(ge=0, le=WAIT_MAX_S)] = WAIT_MAX_S
    lease: Lease | None = None


class Stream(Request):
    """Options of a stream.

    Attributes:
        max_in_flight: Maximum number of unsettled messages of this stream.
        lease: Seconds after which RMQ delivers an unsettled message again. Default: the topic's
            setting.
    """

    max_in_flight: Annotated[int, Meta(ge=1, le=100)] = 10
    lease: Lease | None = None


class Settle(Request):
    """Receipts of deliveries, 1 to 1000."""

    receipts: Receipts


class Nack(Settle):
    """Failed deliveries.

    Attributes:
        delay: Seconds until the retry. Default: the retry policy of the message or of the topic.
        error: Error that is stored with the failure.
    """

    delay: Seconds | None = None
    error: Text = REASON


class Reject(Settle):
    """Deliveries that become dead letters. RMQ stores `reason` with the dead letters."""

    reason: Text


class Release(Settle):
    """Deliveries to give back. `delay` is the number of seconds until the next delivery."""

    delay: Seconds = 0


class Extend(Settle):
    """Deliveries whose leases you want to extend.

    Attributes:
        lease: Duration of the lease from now, in seconds. Default: the topic's setting.
    """

    lease: Lease | None = None


class HttpDelivery(Answer):
    """A message as RMQ delivered it.

    Attributes:
        receipt: Signed text that settles this delivery. Any server accepts it.
        encoding: "json" if `body` is JSON, or "base64" if `body` is a text in base64.
        codec: Codec of the bytes in base64, for example "bytes" or "msgpack", or "json".
        attempt: Number of this attempt: 1 for the first delivery.
        deadline: End of the lease, by the clock of Redis.
        fence: Delivery number. Each delivery from the same slot (part) of the topic gets a larger
            number.
    """

    receipt: str
    id: str
    body: msgspec.Raw
    encoding: Encoding
    codec: str
    type: str | None
    group: str | None
    headers: dict[str, str]
    priority: int | None
    due: datetime | None
    attempt: int
    retries_left: int
    deadline: datetime
    fence: int


class Received(Answer):
    """The messages that were received. The list is empty if no message came in time."""

    deliveries: list[HttpDelivery]


class SettledReceipts(Answer):
    """The number of settled deliveries, and the receipts of deliveries that lost their lease."""

    settled: int
    lost: list[str]


class ExtendedLease(Answer):
    """A lease that RMQ has extended.

    Attributes:
        former: Receipt in your request. It is no longer valid.
        receipt: New receipt of the delivery.
        deadline: New end of the lease.
        cancelled: Whether a user has requested the cancellation of the message.
    """

    former: str
    receipt: str
    deadline: datetime
    cancelled: bool


class ExtendedLeases(Answer):
    """The extended leases, and the receipts of deliveries that had lost their lease."""

    extended: list[ExtendedLease]
    lost: list[str]


@TABLE.post("/topics/{topic}/receive", role=Role.CONSUMER, is_long=True)
async def receive_messages(
    context: RequestContext, path: TopicPath, body: Receive
) -> AsyncIterator[Received]:
    """Receive messages under a lease, and wait for the first message.

    Settle each delivery with its receipt. If you disconnect before the server has written the
    response, the server releases the messages. They lose no retry.
    """
    receiving = context.consumers.receiving(
        path.topic, body.max, body.lease, body.wait, context.connection
    )
    async with receiving as deliveries:
        yield Received(deliveries=[_shown(context, each) for each in deliveries])


@TABLE.post("/topics/{topic}/stream", role=Role.CONSUMER, is_long=True)
async def stream_messages(
    context: RequestContext, path: TopicPath, body: Stream
) -> AsyncIterator[list[HttpDelivery]]:
    """Receive messages as lines of NDJSON, until the client disconnects or the server stops.

    Settle each delivery with its receipt, in other requests. While `max_in_flight` messages are not
    settled, the stream sends no further message. After 15 s without a message, it sends an empty
    line. If the server cannot write a line, it releases the message, which loses no retry.
    """
    consumers, connection = context.consumers, context.connection
    await consumers.open(path.topic)
    with consumers.stream(path.topic, body.max_in_flight) as stream:
        yield []  # the status
        while not connection.is_ending:
            connection.on_end(stream.wake)
            if not (room := await stream.room()):
                yield []
                continue
            receiving = consumers.receiving(path.topic, room, body.lease, SILENT_S, connection)
            async with receiving as deliveries:
                stream.add(deliveries)
                yield [_shown(context, each) for each in deliveries]


@TABLE.post("/topics/{topic}/ack", "bad-receipt", "lease-lost", role=Role.CONSUMER)
async def ack_messages(context: RequestContext, path: TopicPath, body: Settle) -> SettledReceipts:
    """Settle deliveries as done.

    The status is 409 if all leases have ended. If only some leases have ended, `lost` has their
    receipts.
    """
    return await _settle(context, path, body, lambda flows, given: flows.ack(given))


@TABLE.post("/topics/{topic}/nack", "bad-receipt", "lease-lost", role=Role.CONSUMER)
async def nack_messages(context: RequestContext, path: TopicPath, body: Nack) -> SettledReceipts:
    """Give deliveries back as failed. Each message loses a retry."""
    return await _settle(
        context, path, body, lambda flows, given: flows.nack(given, body.delay, body.error)
    )


@TABLE.post("/topics/{topic}/reject", "bad-receipt", "lease-lost", role=Role.CONSUMER)
async def reject_messages(
    context: RequestContext, path: TopicPath, body: Reject
) -> SettledReceipts:
    """Make deliveries dead letters now, even if they have retries left."""
    return await _settle(context, path, body, lambda flows, given: flows.reject(given, body.reason))


@TABLE.post("/topics/{topic}/release", "bad-receipt", "lease-lost", role=Role.CONSUMER)
async def release_messages(
    context: RequestContext, path: TopicPath, body: Release
) -> SettledReceipts:
    """Give deliveries back without a failure. The messages lose no retry."""
    return await _settle(context, path, body, lambda flows, given: flows.release(given, body.delay))


@TABLE.post("/topics/{topic}/extend", "bad-receipt", "lease-lost", role=Role.CONSUMER)
async def extend_leases(context: RequestContext, path: TopicPath, body: Extend) -> ExtendedLeases:
    """Extend the leases of deliveries.

    The new lease starts now. Each delivery gets a new receipt, and the former receipt is no longer
    valid.
    """
    consumers = context.consumers
    settled = await consumers.settle(
        path.topic, body.receipts, lambda flows, given: flows.extend(given, body.lease)
    )
    extended = [
        ExtendedLease(
            former=former, receipt=consumers.signer.sign(each), deadline=_deadline(each),
            cancelled=each.is_cancelled,
        )
        for former, each in settled.deliveries.items()
    ]  # fmt: skip
    return ExtendedLeases(extended=extended, lost=settled.lost)


async def _settle(
    context: RequestContext, path: TopicPath, body: Settle, verb: Verb
) -> SettledReceipts:
    settled = await context.consumers.settle(path.topic, body.receipts, verb)
    return SettledReceipts(settled=len(settled.deliveries), lost=settled.lost)


def _shown(context: RequestContext, delivery: InnerDelivery) -> HttpDelivery:
    data = DeliveryData(delivery, None)
    body, encoding, codec_name = body_of(delivery)
    return HttpDelivery(
        receipt=context.consumers.signer.sign(delivery), id=str(data.id), body=body,
        encoding=encoding, codec=codec_name, type=data.type, group=data.group,
        headers=dict(data.headers), priority=data.priority, due=data.due, attempt=data.attempt,
        retries_left=data.retries_left, deadline=_deadline(delivery), fence=data.fence,
    )  # fmt: skip


def _deadline(delivery: InnerDelivery) -> datetime:
    return moment(receipt_deadline_ms(delivery.score))


def body_of(delivery: InnerDelivery) -> tuple[msgspec.Raw, Encoding, str]:
    """Return the body of a delivery as JSON, its encoding, and the codec of bytes in base64.

    If JSON can express the decoded body without a loss, the body is JSON. JSON of the producer
    stays unchanged, so that numbers keep all digits.
    """
    value, json_name = delivery.body, codec.JSON.name
    if isinstance(value, bytes):
        return _base64(value), "base64", codec.BYTES.name
    data, name = delivery.record, json_name
    is_plain = data[0] >> 5 == codec.JSON.number and not data[0] & record.KIND
    try:
        if is_plain:
            text = data[record.fields_of(data)[-1] :]
            msgspec.json.decode(text, type=msgspec.Raw)  # raises if it is not strict JSON
        else:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
            if json.loads(text) != value:  # for example a map with numbers as keys
                raise ValueError
        return msgspec.Raw(text), "json", json_name
    except (ValueError, TypeError, RecursionError, msgspec.DecodeError):
        pass
    try:
        text, name = codec.MSGPACK.encode(value), codec.MSGPACK.name
    except EncodeError:  # an object that a codec of the user has made
        stored = record.read(data)
        known = codec.by_number(stored.codec)
        text, name = stored.body, known.name if known else str(stored.codec)
    return _base64(text), "base64", name


def _base64(data: bytes) -> msgspec.Raw:
    return msgspec.Raw(b'"' + base64.b64encode(data) + b'"')
