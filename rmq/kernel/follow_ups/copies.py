"""Copy dead letters to the topic that the setting `dead_to` names.

The script that makes a message a dead letter also stores a pending entry, which has the message's
record. Later, a process makes the copy from this entry and sends the copy. If the target topic can
never accept the copy, the copy is dropped. The dead letter remains in its own topic.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from rmq.errors import DecodeError
from rmq.kernel.core import codec, failure, ids, record, sequence
from rmq.kernel.core.body_limits import CALL_BYTES
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.results import BATCH_MARK, KEEP_MARK
from rmq.kernel.follow_ups.encode import DEPTH_MARK, depth_in
from rmq.kernel.follow_ups.scripts import COPY, DIGITS, Entry, entry_of, number_of
from rmq.kernel.topic import reading
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import Flow

log = logging.getLogger("rmq")

REASON_MARK, ID_MARK = "rmq-dead-reason", "rmq-dead-id"  # headers of a copy
# Headers that are valid for the dead letter only: its audit number, a request for its result, and
# its batch.
OF_LETTER = (sequence.HEADER, KEEP_MARK, BATCH_MARK)
_RECORD_AT = DIGITS + 2 + ids.MEMBER_SIZE


def is_copy(entry: Entry) -> bool:
    """Return whether a stored, unsent follow-up is a copy of a dead letter."""
    return entry[DIGITS : DIGITS + 1] == COPY


def drop(context: TopicContext, topic: str, count: int, reason: str) -> None:
    """Log a warning that copies for a topic are dropped."""
    log.warning(
        "topic %r: %d copies of dead letters are not sent to topic %r: %s", context.name, count,
        topic, reason,
    )  # fmt: skip


def messages(
    context: TopicContext, source: SlotKeys, target: TopicContext, index: int, run: Sequence[Entry]
) -> Flow[list[Entry | None]]:
    """Create the copies of dead letters that were stored but not sent yet.

    The result has at most as many messages as one call may store. The caller makes the other copies
    later.

    Args:
        context: Topic of the dead letters.
        source: Slot of the dead letters.
        target: Topic that gets the copies.
        index: Slot of the target topic.
        run: Pending entries of copies.

    Returns:
        The copies, as `pending_send` accepts them. None stands for a copy that the topic cannot
            accept.
    """
    records: list[bytes] = []
    size = 0
    for entry in run:
        data = entry[_RECORD_AT:]
        size += len(data) + (record.size_of(data) if record.positions([data]) else 0)
        if records and size > CALL_BYTES:
            break
        records.append(data)
    members = [entry[DIGITS + 2 : _RECORD_AT] for entry in run[: len(records)]]
    letters = ids.ids_of(members, source.middle)
    records = yield from reading.fetch(source, letters, records)
    made: list[Entry | None] = []
    for entry, letter, data in zip(run, letters, records, strict=False):
        try:
            made.append(_message(context, target, index, entry, letter, data))
        except DecodeError as error:
            drop(context, target.name, 1, str(error))
            made.append(None)
    return made


def _message(
    context: TopicContext,
    target: TopicContext,
    index: int,
    entry: Entry,
    letter: bytes,
    data: bytes,
) -> Entry:
    fields = record.read(data)
    depth, most = depth_in(fields.headers) + 1, context.settings.max_depth
    if 0 < most < depth:
        raise DecodeError(f"message {ids.MessageId(letter)} is number {depth} of a chain, and the "
                          f"max_depth is {most}")  # fmt: skip
    if codec.reference_of(fields.codec, fields.body) is not None:
        raise DecodeError("its body is in a store outside of Redis")
    if len(fields.body) > target.settings.max_body:
        raise DecodeError(
            f"its body is larger than the topic's max_body, {target.settings.max_body}"
        )
    headers = {name: text for name, text in fields.headers.items() if name not in OF_LETTER} | {
        REASON_MARK: failure.reason_of(chr(entry[DIGITS + 1])),
        ID_MARK: str(ids.MessageId(letter)),
        DEPTH_MARK: str(depth),
    }
    head, rest = record.moved(fields, headers)
    _, member = ids.make_one(index, target.check)
    return entry_of(number_of(entry), member + head + rest)
