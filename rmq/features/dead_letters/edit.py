"""Change the body or the headers of a dead letter, and send the letter back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgpack

from rmq.errors import DecodeError, InvalidValue
from rmq.features.dead_letters import scripts
from rmq.kernel.core import codec as codecs, record as core_record
from rmq.kernel.core.body_limits import body_too_large
from rmq.kernel.core.codec import COMPRESSED, Codec, Compressed
from rmq.kernel.core.ids import Id
from rmq.kernel.core.message import Outgoing
from rmq.kernel.core.record import Record
from rmq.kernel.producer.encode import encode_headers
from rmq.kernel.topic import opening, reading, scripts as topic_scripts
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import Flow

EditStatus = Literal["redriven", "gone", "moving", "unreadable"]
_STATUSES: dict[str, EditStatus] = {
    "1": "redriven", "0": "gone", "m": "moving", "x": "unreadable",
}  # fmt: skip


class Unchanged:
    """Default of an argument for which None is a valid value."""

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED = Unchanged()


def edit(
    context: TopicContext, id: Id, body: Any, headers: Mapping[str, str] | None
) -> Flow[EditStatus]:
    """Change the body or the headers of a dead letter, and send the letter back.

    Raises:
        TopicNotFound: The topic does not exist.
        InvalidValue: The message is a merge of several messages, or its body is encrypted.
        EncodeError: The codec of the message cannot encode the body.
        PayloadTooLarge: The body is larger than the `max_body` of the topic.
    """
    if isinstance(body, Unchanged) and headers is None:
        raise InvalidValue("body, headers: pass at least one of them")
    message_id = yield from opening.open_for(context, id)
    keys = context.slots[message_id.slot]
    member = yield topic_scripts.get(keys, message_id)
    if member is None or member.queue != "dead":
        return "gone"
    (whole,) = yield from reading.with_bodies(context, [member])
    try:
        fields = core_record.read(whole.record)
        if isinstance(body, Unchanged):
            core_record.check_body(fields.flags)
    except DecodeError:
        return "unreadable"
    edited = _record(context, fields, body, headers)
    with context.sessions.borrowed() as session:
        letters = yield scripts.redrive(
            context, keys, session, [message_id], died_by_ms=int(member.score), edited=edited
        )
    return _STATUSES[letters]


def _record(
    context: TopicContext, fields: Record, body: Any, headers: Mapping[str, str] | None
) -> bytes:
    is_list = fields.flags & core_record.KIND == core_record.KIND
    number, data = fields.codec, fields.body
    if not isinstance(body, Unchanged):
        if is_list:
            raise InvalidValue("body: the message collected several bodies, which cannot be edited")
        codec = _codec_of(fields)
        number, data = codec.number, codec.encode(body)
        if len(data) > context.settings.max_body:
            raise body_too_large(codec.name, len(data), context.settings.max_body, offloads=False)
    kept = fields.headers
    if headers is not None:
        encode_headers(Outgoing(None, headers=headers))  # checks them
        kept = core_record.marks(kept) | dict(headers)
    key = fields.merge_key and core_record.merge_key_of_type(
        fields.merge_key, fields.headers.get(core_record.TYPE_MARK)
    )
    head, before = core_record.envelope(
        number, fields.priority,
        due_ms=fields.due_ms if fields.flags & core_record.TIMED else None,
        expires_ms=fields.expires_ms, merge_key=key, collects=is_list,
    )  # fmt: skip
    if kept:
        head, before = core_record.with_headers(head, before, msgpack.packb(kept))
    return head + before + data


def _codec_of(fields: Record) -> Codec:
    number = fields.codec
    if number == Compressed.number:
        if codecs.is_encrypted(number, fields.body):
            raise InvalidValue(
                "body: the body is encrypted; send a corrected message from a program with the key"
            )
        if codecs.reference_of(number, fields.body) is not None:
            return codecs.JSON
        try:
            return COMPRESSED.unpack(fields.body, 0, cut=True)[0]
        except DecodeError:
            return codecs.JSON
    codec = codecs.by_number(number)
    if codec is None:
        raise InvalidValue(f"body: codec number {number} is unknown here; install its package")
    return codec
