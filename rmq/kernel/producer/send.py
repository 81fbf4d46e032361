"""Send messages: divide them into batches, make a call for each batch, and return results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, repeat
from typing import Any, NamedTuple, cast

from rmq.errors import (
    InvalidType,
    InvalidValue,
    NotDurable,
    OutcomeUnknown,
    QueueFull,
    RMQError,
    TopicPaused,
    TopicVanished,
)
from rmq.kernel.core import ids as core_ids, record
from rmq.kernel.core.coalescer import SEPARATE_CALL, Coalescer, SeparateCall, same_error
from rmq.kernel.core.codec import Offloaded
from rmq.kernel.core.ids import MessageId
from rmq.kernel.core.interceptor import start_hooks
from rmq.kernel.core.message import Outgoing, SendResult
from rmq.kernel.core.settings import Durability, Fsync, parse_durability
from rmq.kernel.core.validation import Duration, duration_ms, format_duration
from rmq.kernel.producer import offloading, report, scripts
from rmq.kernel.producer.batches import Outdated, SendBatch, make_batches
from rmq.kernel.producer.encode import (
    EncodedMessage,
    basis_of,
    encode,
    encode_plain,
    encode_type,
    is_plain,
)
from rmq.kernel.producer.results import STATUS, CallResults, Results, merged_into
from rmq.kernel.producer.scripts import SendReply
from rmq.kernel.topic import capacity, opening
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.sessions import ReplaySession
from rmq.kernel.topic.slot_choice import slot_of
from rmq.kernel.transport.flow.coalescing import coalesced
from rmq.kernel.transport.flow.steps import Await, Coalesce, Command, Flow, Sleep, durable_pipeline

Stored = Flow[Sequence[SendResult]]
Store = Callable[[Iterable[Outgoing]], Stored]

BLOCK_S = 30.0  # how long a send waits for room if the topic's overflow is "block"


class DurabilityOverride(NamedTuple):
    """The durability of one send, which replaces the topic's durability.

    If `level` is None, the durability is "memory".
    """

    level: Durability


def block_s(timeout: Duration | None) -> float:
    """Return how many seconds a send waits while its topic is full."""
    return BLOCK_S if timeout is None else duration_ms(timeout, "timeout", zero=True) / 1000


def send(
    context: TopicContext,
    out: Outgoing,
    durability: Durability | str | None = None,
    timeout: Duration | None = None,
) -> Flow[SendResult]:
    """Send one message. `Topic.send` describes the arguments `durability` and `timeout`.

    A message with no option except a priority and a type is sent in a faster way. Redis refuses the
    call if the topic is full or paused, or if it was resized or created again. Nothing is then
    stored, and the message is sent again as a batch of one message.

    While other sends are in progress, new messages are combined into the next call.
    """
    if (
        durability is None
        and timeout is None
        and not context.hooks.chain
        and type(context.codec) is not Offloaded
        and type(out) is Outgoing
        and is_plain(out, typed=True)
    ):
        if time.monotonic() >= context.current_until:
            yield from opening.ensure_open(context)
        settings = context.settings
        if settings.durability is None and not settings.expires_ms and not context.keep_s:
            headers = b"" if out.type is None else encode_type(out.type)
            head, body = encode_plain(context.codec, settings, out)
            sends = context.sends.get(None) or _shared_sends(context, None)
            permit = sends.begin()
            if permit is None:
                item = EncodedMessage.plain(settings, head, body, headers)
                outcome = yield Coalesce(sends, item, item.size)
            else:
                try:
                    outcome = yield from _send_plain(context, head, headers, body)
                finally:
                    sends.end(permit)
                    del permit
            if isinstance(outcome, Exception):
                raise outcome
            if outcome is not SEPARATE_CALL:
                return cast(SendResult, outcome)
    override = None if durability is None else DurabilityOverride(parse_durability(durability))
    if timeout is None:
        store = partial(_send_shared, context, override)
    else:
        store = partial(_send, context, override=override, wait_s=block_s(timeout))
    results = yield from _with_hooks(context, (out,), store)
    return results[0]


def _send_plain(
    context: TopicContext, head: bytes, headers: bytes, body: bytes
) -> Flow[SendResult | SeparateCall]:
    """Send a message without options. Return SEPARATE_CALL if Redis refused the message."""
    if headers:
        head, headers = record.with_headers(head, b"", headers)
    slot = next(context.spread)
    id, member = core_ids.make_one(slot, context.check)
    session = context.sessions.acquire()
    keys, apart = context.slots[slot], context.large_bytes_min
    try:
        reply = yield scripts.send_one(context, keys, session, head, member, headers, body, apart)
    except OutcomeUnknown:
        raise  # a copy may still arrive, so no other call may use this session number
    except RMQError as error:  # other exceptions, such as a time limit, leave the outcome unknown
        context.sessions.release(session)
        if not isinstance(error, TopicVanished):
            raise
        return SEPARATE_CALL
    context.sessions.release(session)
    if reply.codes:
        return SEPARATE_CALL
    return SendResult(id, "stored", slot, reply.offset, None, "memory")


def send_many(
    context: TopicContext,
    messages: Iterable[Outgoing],
    durability: Durability | str | None = None,
    timeout: Duration | None = None,
) -> Flow[Sequence[SendResult]]:
    """Send messages, and return the results in order.

    All messages are checked and encoded before the first call. RMQ calls the hooks of interceptors
    for each message. `Topic.send` describes the arguments `durability` and `timeout`.

    Redis stores all messages of one slot in one call, or none of them. Messages with a merge key
    are an exception. All calls share a round trip.
    """
    override = None if durability is None else DurabilityOverride(parse_durability(durability))
    store = partial(_send, context, override=override, wait_s=block_s(timeout))
    return _with_hooks(context, messages, store)


def new_id(context: TopicContext, basis: str | bytes | None, group: str | None) -> Flow[MessageId]:
    """Make an id for a message that the caller may have to send again."""
    yield from opening.ensure_open(context)
    basis = basis_of(group, basis)
    slot = next(context.spread) if basis is None else slot_of(basis, context.settings.slots)
    return core_ids.make(slot, context.check, kept=True)[0]


def _with_hooks(context: TopicContext, messages: Iterable[Outgoing], store: Store) -> Stored:
    """Send messages with the function `store`, and call the hooks of interceptors.

    A hook may change its message. So if there are hooks, RMQ sends copies of the messages.
    """
    hooks = context.hooks
    if isinstance(context.codec, Offloaded):
        store = partial(offloading.send, context, context.codec, store)
    if hooks.before_send or hooks.after_send:
        return _send_intercepted(context, messages, store)
    return store(messages)


def _send_intercepted(
    context: TopicContext, messages: Iterable[Outgoing], store: Store
) -> Flow[Sequence[SendResult]]:
    hooks = context.hooks
    copies = []
    for out in messages:
        if not isinstance(out, Outgoing):
            raise InvalidType(f"messages: {type(out).__name__}; give rmq.Outgoing(body, ...)")
        copies.append(replace(out, marks=dict(out.marks) if out.marks else None))
    for out in copies:
        for awaitable in start_hooks(hooks.before_send, context.name, out):
            yield Await(awaitable)
    try:
        results = yield from store(copies)
    except BaseException as error:
        partial = error.results if isinstance(error, QueueFull | NotDurable | TopicPaused) else []
        for index, out in enumerate(copies):
            result = partial[index] if index < len(partial) else None
            for awaitable in start_hooks(hooks.after_send, context.name, out, result or error):
                yield Await(awaitable)
        raise
    for out, result in zip(copies, results, strict=True):
        for awaitable in start_hooks(hooks.after_send, context.name, out, result):
            yield Await(awaitable)
    return results


def _shared_sends(context: TopicContext, override: DurabilityOverride | None) -> Coalescer:
    """Return the object that combines simultaneous sends with this durability into one call."""
    kept: Coalescer | None = context.sends.get(override)
    if kept is None:
        run = partial(_send_together, context, override)
        kept = context.sends.setdefault(override, Coalescer(run))
    return kept


def _send_shared(
    context: TopicContext, override: DurabilityOverride | None, messages: Iterable[Outgoing]
) -> Stored:
    """Send one message together with other messages that are sent at the same moment."""
    (out,) = messages
    if time.monotonic() >= context.current_until:
        yield from opening.ensure_open(context)
    yield from opening.follow_ids(context, (out.id,))

    def item() -> tuple[EncodedMessage, int]:
        message = encode(context, context.settings, out)
        return message, message.size

    def alone() -> Flow[SendResult]:
        return (yield from _send(context, (out,), override, BLOCK_S))[0]

    return [(yield from coalesced(_shared_sends(context, override), item, alone))]


def _send_together(
    context: TopicContext, override: DurabilityOverride | None, items: list[EncodedMessage]
) -> Flow[list[Any]]:
    """Send messages of several callers in one call. Return the outcome of each message.

    If Redis refuses a message because the topic is full, paused or resized, the outcome is
    SEPARATE_CALL. The caller then sends this message in a separate call.
    """
    outcomes: list[Any] = [None] * len(items)
    call = partial(_call_together, outcomes=outcomes)
    error: RMQError | None = None
    try:
        yield from _send_once(context, items, override, call)
    except Outdated:
        return [SEPARATE_CALL] * len(items)
    except RMQError as failure:
        error = failure
    for index, outcome in enumerate(outcomes):
        if outcome is None:
            outcomes[index] = SEPARATE_CALL if error is None else same_error(error)
    return outcomes


def _send(
    context: TopicContext,
    messages: Iterable[Outgoing],
    override: DurabilityOverride | None,
    wait_s: float,
) -> Flow[Sequence[SendResult]]:
    """Send messages. If Redis refuses messages because the topic was resized, send them again."""
    given: Sequence[Outgoing]
    if isinstance(messages, list | tuple):
        given = messages
    else:
        given = read = list[Outgoing]()
        messages = _remember(messages, read)
    call = partial(_call, until=time.monotonic() + wait_s)
    try:
        results = yield from _send_once(context, messages, override, call)
    except InvalidValue:  # nothing was sent
        if not (yield from opening.follow_ids(context, (out.id for out in given))):
            raise
        left = messages if given is messages else chain(tuple(given), messages)
        results = yield from _send_once(context, left, override, call)
    for _ in range(opening.RESIZES_IN_CALL):
        if results.refusal is None:
            return results.complete()
        left = [index for index, result in enumerate(results.rows) if result is None]
        refused = [given[index] for index in left]
        results.refusal = None
        try:
            again = yield from _send_once(context, refused, override, call)
        except (QueueFull, NotDurable, TopicPaused) as error:
            error.results = results.with_those_of(left, error.results)
            raise
        results.rows, results.refusal = results.with_those_of(left, again.rows), again.refusal
    if results.refusal is not None:
        raise results.refusal
    return results.complete()


def _remember(messages: Iterable[Outgoing], given: list[Outgoing]) -> Iterator[Outgoing]:
    for message in messages:
        given.append(message)
        yield message


def _send_once(
    context: TopicContext,
    messages: Iterable[Outgoing | EncodedMessage],
    override: DurabilityOverride | None,
    call: Callable[..., Flow[None]],
) -> Flow[Results]:
    """Send messages once. Messages that Redis refuses are not sent again.

    RMQ chooses slots by the number of slots that this client last read. If the topic was resized
    since then, Redis refuses the messages, and `Results.refusal` has the error. The argument `call`
    is `_call` or `_call_together`.
    """
    if time.monotonic() >= context.current_until:
        yield from opening.ensure_open(context)
    batches: list[SendBatch] = []
    results = Results()
    producer_sequence = context.hooks.producer_sequence
    try:
        # The caller may repeat a send that raises NotDurable, so its ids must be kept.
        level = context.settings.durability if override is None else override.level
        make_batches(context, messages, batches, context.settings.call_max, kept=level is not None)
        if not batches:
            return results
        if producer_sequence is not None:
            yield from report.register(
                {batch.sequence for batch in batches if batch.sequence is not None}
            )
        results.rows = [None] * sum(len(batch.indexes) for batch in batches)
        later = batches
        while later and results.refusal is None:
            now, later = _next_round(later)
            sessions = [context.sessions.acquire() for _ in now]
            calls = list(map(_command, repeat(context), now, sessions))
            try:
                yield from call(context, calls, now, results, override)
            except OutcomeUnknown:
                raise  # a copy may still arrive, so no other call may use these session numbers
            except RMQError as error:
                context.sessions.release(*sessions)
                if not isinstance(error, TopicVanished):
                    raise
                if not (yield from opening.forget_if_recreated(context, error)):
                    raise
                results.refusal = error
            else:
                context.sessions.release(*sessions)
            if results.unfinished:
                later, results.unfinished = results.unfinished + later, []
    finally:
        if producer_sequence is not None:
            report.record_numbers(batches, results.rows)
    if producer_sequence is not None:
        yield from report.schedule(producer_sequence)
    return results


def _next_round(batches: list[SendBatch]) -> tuple[list[SendBatch], list[SendBatch]]:
    """Divide batches into two lists: batches to send now, and batches to send afterwards.

    The script `merge` may not process the last messages of a call. These messages then need another
    call. A later batch of the same slot must wait for this call, so that the messages keep their
    order.
    """
    if len(batches) == 1:
        return batches, []
    now, later, unfinished_slots = list[SendBatch](), list[SendBatch](), set[int]()
    for batch in batches:
        (later if batch.slot in unfinished_slots else now).append(batch)
        if batch.merging is not None and len(batch.indexes) - batch.done > 1:
            unfinished_slots.add(batch.slot)
    return now, later


# --- calls -------------------------------------------------------------------------------------


def _command(context: TopicContext, batch: SendBatch, session: ReplaySession) -> Command[Any]:
    keys = context.slots[batch.slot]
    if batch.merging is not None:
        return scripts.merge(context, keys, session, batch.ids, batch.parts, batch.done)
    if batch.is_uniform():
        head, rests = batch.parts[0], batch.parts[1::2]
        return scripts.send_uniform(context, keys, session, head, batch.ids, rests, batch.large)
    return scripts.send(context, keys, session, batch.ids, batch.parts, batch.large)


def _replies(
    context: TopicContext, calls: list[Command[Any]], override: DurabilityOverride | None
) -> Flow[tuple[list[Any], str, str]]:
    """Make the calls, and wait until the messages have the requested durability.

    Returns:
        Replies or errors. Then a text that says which copies are missing, or ''. Then the
            durability that was reached.
    """
    wanted = context.settings.durability if override is None else override.level
    if wanted is None and len(calls) == 1:
        return [(yield calls[0])], "", "memory"
    replies, short = yield from durable_pipeline(calls, wanted)
    if wanted is None or short:
        return replies, short, "memory"
    return replies, short, "fsync" if isinstance(wanted, Fsync) else "replicated"


def _call(
    context: TopicContext,
    calls: list[Command[Any]],
    batches: list[SendBatch],
    results: Results,
    override: DurabilityOverride | None,
    until: float,
) -> Flow[None]:
    """Make the calls of one send.

    If the topic is full and its setting `overflow` is "block", refused calls are repeated until the
    time in `until`, by the monotonic clock.
    """
    pause = 0.01
    while True:
        replies, short, level = yield from _replies(context, calls, override)
        full: list[int] = []
        is_paused = False
        failed: RMQError | None = None
        for number, (batch, reply) in enumerate(zip(batches, replies, strict=True)):
            if isinstance(reply, RMQError):
                # A refusal by a resize is sent again later; another error goes to the caller.
                if failed is None or isinstance(failed, TopicVanished):
                    failed = reply
            elif reply.is_paused:
                is_paused = True
            elif not _write_results(batch, reply, results, level):
                full.append(number)
        is_stored_short = short and any(results.rows)
        if failed is not None and not (isinstance(failed, TopicVanished) and is_stored_short):
            raise failed
        if is_paused:
            stored = len(results.rows) - list(results.rows).count(None)
            what = (
                f"{stored} of {len(results.rows)} messages are stored" if stored else "Nothing is"
            )
            what += ": send the others again" if stored else " stored: send again"
            raise (yield from opening.paused_error(context, what, list(results.rows)))
        if short:
            raise _not_durable(context, short, results.rows)
        if not full:
            return
        calls, batches = [calls[n] for n in full], [batches[n] for n in full]
        if context.settings.layout and (
            yield from capacity.divide_again(
                context, [(batch.slot, len(batch.indexes)) for batch in batches]
            )
        ):
            continue
        if context.settings.overflow != "block" or time.monotonic() + pause > until:
            raise QueueFull(
                f"topic {context.name!r} is at its max_length of {context.settings.max_length} "
                f"({list(results.rows).count(None)} of {len(results.rows)} messages "
                "refused); send again when consumers have caught up",
                list(results.rows),
            )
        yield Sleep(pause)
        pause = min(pause * 2, 0.5)


def _call_together(
    context: TopicContext,
    calls: list[Command[Any]],
    batches: list[SendBatch],
    results: Results,
    override: DurabilityOverride | None,
    outcomes: list[Any],
) -> Flow[None]:
    """Make the calls for messages of several callers, and set the outcome of each message.

    If Redis refused a message, its outcome is None.
    """
    replies, short, level = yield from _replies(context, calls, override)
    unknown: OutcomeUnknown | None = None
    for batch, reply in zip(batches, replies, strict=True):
        if isinstance(reply, OutcomeUnknown):
            unknown = reply
        if isinstance(reply, RMQError):
            if not isinstance(reply, TopicVanished):
                for index in batch.indexes[batch.done :]:
                    outcomes[index] = same_error(reply)
        elif not reply.is_paused:
            _write_results(batch, reply, results, level)
    for index, result in enumerate(results.rows):
        if result is not None and outcomes[index] is None:
            outcomes[index] = _not_durable(context, short, [result]) if short else result
    if unknown is not None:
        for index, outcome in enumerate(outcomes):
            if outcome is None:
                outcomes[index] = SEPARATE_CALL
        raise unknown  # so that no other call uses these session numbers


def _not_durable(
    context: TopicContext, short: str, rows: Sequence[SendResult | None]
) -> NotDurable:
    """Return the error for messages that are stored with less durability than requested."""
    described = _describe_stored(rows, context.settings.dedup_window_ms)
    return NotDurable(f"{short}. {described}", list(rows))


def _write_results(batch: SendBatch, reply: SendReply, results: Results, level: str) -> bool:
    """Write the results of one call. Return False if the slot was full."""
    if reply.codes == "F":
        return False
    ids, indexes = batch.ids, batch.indexes
    if len(indexes) == 1 and reply.codes:
        id, status = ids[0], STATUS[reply.codes]
        target = merged_into(id, reply.into, 0) if reply.into else None
        results.put(indexes, [SendResult(id, status, batch.slot, reply.offset, target, level)])
        return True
    if len(reply.codes) < len(indexes) and reply.codes:
        done, batch.done = batch.done, batch.done + len(reply.codes)
        ids, indexes = ids[done : batch.done], indexes[done : batch.done]
        if batch.done < len(batch.indexes):
            results.unfinished.append(batch)
    results.put(indexes, CallResults(ids, batch.slot, reply, level))
    return True


def _describe_stored(results: Sequence[SendResult | None], window_ms: int) -> str:
    """Return the part of the error NotDurable that says how to repeat the send."""
    stored = [result.id for result in results if result is not None]
    adds = "adds nothing while the message is there" + (
        f", and for {format_duration(window_ms / 1000)} after it was settled" if window_ms else ""
    )
    if len(stored) == 1:
        return f"The message is stored as {stored[0]}; sent again with that id, it {adds}"
    return (
        f"{len(stored)} messages are stored, {stored[0]} first; the error's `results` have all "
        f"ids, and sending the same id again {adds}"
        if stored
        else f"Whether they are stored is not known; sending the same id again {adds}"
    )
