"""RMQ's protocol in small: what Redis has, and what each script does to it.

Two messages and one slot. A script is one step, as in Redis. Time is "this lease has ended", which
may be at any moment. Where a script chooses by something that is not modelled (which message goes
first, whether one take in five is due, whether a credit has lapsed), every choice is followed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import permutations
from typing import Any, NamedTuple

MESSAGES = (0, 1)
RETRIES = 1  # deliveries of a message that may fail, beyond the first one
ENDED = -1  # in place of a lease: its deadline has passed
REVOKED = -2  # in place of a shared lease that was rolled back: its receipts hold no longer
OWN = 0  # in place of a lease: one of the delivery's own, which has not ended

# Sessions, and who has them. SECOND is one of the sleeper, for the second hand-over of a credit.
PRODUCER, PLAIN, WORKER, SLEEPER, CANCELLER, SECOND = range(6)
OWNER = (PRODUCER, PLAIN, WORKER, SLEEPER, CANCELLER, SLEEPER)
NAMES = (
    "producer", "plain consumer", "worker", "sleeper", "canceller",
    "sleeper, in its second session,",
)  # fmt: skip

# Where the connection is on which the sleeper listens. LIVE: at this server, and read. UNREAD:
# dead, but still counted here. GONE: nowhere. REPLICA: at a replica, which repeats what is
# published here.
LIVE, UNREAD, GONE, REPLICA = "live", "unread", "gone", "at a replica"

LATE = "late"
KEEPS_RESULTS = "keeps results"  # reply to an ack that would lose a result: it changed nothing

# How messages end: the letters of their results.
SUCCEEDED, DIED, CANCELLED, EXPIRED, PURGED = "s", "d", "c", "e", "p"
FUTURE, PASSED = "future", "passed"  # the expiry of a message that has one


@dataclass(frozen=True)
class Rules:
    """The rules that keep the promises; a mutant is RMQ without one of them."""

    fence: bool = True  # ack, nack and release compare the receipt
    replay_send: bool = True  # a repeated send is answered, and adds nothing
    replay_take: bool = True  # a repeated take gives the batch of the first one
    replay_ack: bool = True  # a repeated ack is answered as the first one
    refuse_late: bool = True  # a number below the last one of its session is refused
    keep_empty: bool = True  # a repeated take that found nothing is remembered
    count_publish: bool = True  # only what a PUBLISH was counted for is moved
    ask_numsub: bool = True  # nothing is published that only a replica's listener hears
    answer_is_kept: bool = True  # what is handed over is the answer to the sleeper's take
    probe: bool = True  # a credit is kept only if its channel was counted
    withdraw: bool = True  # a credit is withdrawn before its owner does anything else
    repeat_withdraws: bool = True  # a repeated take withdraws the credit that it had offered
    new_channel: bool = True  # each subscription has a channel of its own
    spend_call: bool = True  # a hand-over uses up one of those that its credit is good for
    own_calls: bool = True  # each hand-over of a credit is the answer to a call of its own
    recover_all: bool = True  # the further calls of a credit that may have stood are repeated, too
    move_once: bool = True  # what is handed over leaves the StoreQueue
    count_once: bool = True  # only a delivery that is settled is counted
    rollback_costs: bool = True  # a lease that ended costs a retry
    release_is_free: bool = True  # what is released keeps its retries
    shared_rollback: bool = True  # a shared lease that ended is rolled back
    gone_lease_is_new: bool = True  # a lease that was given back is not renewed
    wait_for_replica: bool = True  # a durable send is confirmed by a replica
    replay_cancel: bool = True  # a repeated cancel is answered as the first one
    cancel_names_delivery: bool = True  # a cancel with an old receipt changes nothing
    request_for_one: bool = True  # a request is for one delivery, and is removed with it
    ack_wins: bool = True  # an ack settles the message in spite of a request
    nack_cancels: bool = True  # a nack of a requested delivery ends the message
    release_cancels: bool = True  # as does a release
    rollback_cancels: bool = True  # and the end of the lease
    cancel_waits: bool = True  # a cancel leaves what is in flight where it is
    result_needs_receipt: bool = True  # an ack writes a result only if its receipt is valid
    result_once: bool = True  # an ack writes no result if the message is settled
    result_of_expired: bool = True  # a message that expires gets its result
    result_of_rolled_back: bool = True  # a message that dies by the end of a lease gets its result
    result_of_cancelled: bool = True  # a delivery that ends as cancelled gets its result
    result_of_purged: bool = True  # a message that is purged gets its result
    result_of_dead_stays: bool = True  # if a dead letter is deleted, its result stays
    result_at_end: bool = True  # a failure that is retried writes no result
    result_by_mark: bool = True  # only a message that asked for its result gets it
    redrive_drops_result: bool = True  # a message that is redriven has no result
    send_notes_mark: bool = True  # the send notes in the slot that a message keeps its result
    ack_is_refused: bool = True  # a plain ack is refused in a slot that keeps results
    result_until_end: bool = True  # a result is removed only after the end of its keeping


CallNumber = tuple[int, int]  # a session, and a number in it
Credit = tuple[int, tuple[CallNumber, ...]]  # channel, and a call for each hand-over to come


class Receipt(NamedTuple):
    """A member of the PrepareQueue."""

    delivery: int
    left: int  # retries
    lease: int  # OWN, ENDED, REVOKED, or the number of a shared lease


class Server(NamedTuple):
    """The data in Redis; a replica has the same, if it is not behind."""

    store: tuple[int, ...] = (-1, -1)  # retries left of what waits; -1: it is not there
    prepare: tuple[Receipt | None, ...] = (None, None)
    dead: tuple[bool, ...] = (False, False)
    settled: tuple[bool, ...] = (False, False)
    failed: tuple[int, ...] = (0, 0)  # how often each message was nacked or rolled back
    counted: int = 0  # the slot's counter of settled messages
    delivered: int = 0
    sessions: tuple[tuple[int, Any], ...] = ((0, ()),) * 6  # the last number, and its answer
    credit: Credit | None = None
    lease: tuple[int, bool] | None = None  # the shared lease: its number, whether it has ended
    cancelled: tuple[bool, ...] = (False, False)
    counted_cancelled: int = 0  # the slot's counter of cancelled messages
    requests: tuple[int, ...] = (0, 0)  # deliveries whose cancellation was requested; 0: none
    gone: tuple[str, ...] = ("", "")  # EXPIRED and dropped, PURGED, or DIED and deleted later
    keeps: tuple[bool, ...] = (False, False)  # the mark: which messages keep their results
    expiry: tuple[str, ...] = ("", "")  # FUTURE, PASSED, or none
    outcomes: bool = False  # the slot has stored a message that keeps its result
    results: tuple[str, ...] = ("", "")  # the letters of the results
    written: tuple[int, ...] = (0, 0)  # how often the result of each message was written
    over: tuple[bool, ...] = (False, False)  # whether the keeping of the result has ended


class Call(NamedTuple):
    """A command: a script and its arguments."""

    verb: str
    who: int
    number: int = 0  # in the session of `who`
    message: int = -1
    delivery: int = 0  # of a cancel: its receipt; 0: none is given
    channel: int = -1  # of the credit that a take offers, or that is withdrawn
    lease: int = -1  # the number of a take's shared lease; -1: it takes leases of their own
    again: bool = False
    second: int = 0  # the number of the call for the second hand-over of that credit, if any

    def credit(self) -> Credit:
        """The credit that a take offers."""
        further = ((SECOND, self.second),) if self.second else ()
        return self.channel, ((self.who, self.number), *further)


class Outcome(NamedTuple):
    """The outcome of a script: the data afterwards, its reply, and what was heard."""

    server: Server
    reply: Any
    heard: tuple[tuple[int, int], ...] = ()  # message, delivery
    unused: int = 0  # the hand-overs for which a credit that this removed was still good


Subscription = tuple[int, str]  # the channel, and where its connection is


def put(values: tuple[Any, ...], place: int, value: Any) -> tuple[Any, ...]:
    """Return the values with another one in a place."""
    return (*values[:place], value, *values[place + 1 :])


def remember(server: Server, call: Call, answer: Any) -> Server:
    return server._replace(sessions=put(server.sessions, call.who, (call.number, answer)))


def run(rules: Rules, server: Server, listener: Subscription, call: Call) -> Iterator[Outcome]:
    """Run a script; every outcome that it may have."""
    last, answer = server.sessions[call.who] if call.number else (0, ())
    if last > call.number and rules.refuse_late:
        yield Outcome(server, LATE)
        return
    unused = 0
    if call.again and call.channel >= 0 and rules.repeat_withdraws:
        server, unused = _remove_credit(server, call.channel)
        call = call._replace(channel=-1)
    if call.number and last == call.number and _replays(rules, call):
        reply = _still_held(server, answer) if call.verb == "take" else answer
        yield Outcome(server, reply, unused=unused)
        return
    if call.verb == "take":
        for outcome in _take(rules, server, listener, call):
            yield outcome._replace(unused=unused) if unused else outcome
    elif call.verb == "withdraw":
        yield Outcome(*_remove_credit(server, call.channel))
    elif call.verb in ("ack", "ack_then"):
        yield _ack(rules, server, call)
    elif call.verb == "cancel":
        yield _cancel(rules, server, call)
    elif call.verb in ("purge", "purge_dead"):
        yield _purge(rules, server, call)
    elif call.verb == "drop_expired":
        yield Outcome(_drop_expired(rules, server, MESSAGES), None)
    elif call.verb == "lease_rollback":
        yield Outcome(_end_lease(rules, server), None)
    else:
        made, reply = _give(rules, server, call)
        for after, heard in (
            serve_credit(rules, made, listener) if made != server else ((made, ()),)
        ):
            yield Outcome(after, reply, heard)


def _remove_credit(server: Server, channel: int) -> tuple[Server, int]:
    """Remove a credit; say for how many hand-overs it was still good."""
    if server.credit is None or server.credit[0] != channel:
        return server, 0
    return server._replace(credit=None), len(server.credit[1])


def _replays(rules: Rules, call: Call) -> bool:
    by_verb = {"send": rules.replay_send, "take": rules.replay_take, "ack": rules.replay_ack}
    by_verb |= {"cancel": rules.replay_cancel, "ack_then": rules.replay_ack}
    return by_verb.get(call.verb, True)


def _still_held(server: Server, answer: Any) -> tuple[tuple[int, int], ...]:
    """The deliveries of an answer whose receipts still stand."""
    return tuple(
        (message, delivery)
        for message, delivery in answer
        if (receipt := server.prepare[message]) is not None
        and receipt.delivery == delivery
        and receipt.lease != REVOKED
    )


def _lease(server: Server, message: int, lease: int) -> tuple[Server, tuple[int, int]]:
    """Move a message that waits to the PrepareQueue."""
    delivery = server.delivered + 1
    receipt = Receipt(delivery, server.store[message], lease)
    moved = server._replace(
        store=put(server.store, message, -1),
        prepare=put(server.prepare, message, receipt),
        delivered=delivery,
    )
    return moved, (message, delivery)


def _take(rules: Rules, server: Server, listener: Subscription, call: Call) -> Iterator[Outcome]:
    waiting = [message for message in MESSAGES if server.store[message] >= 0]
    if not waiting:
        made = remember(server, call, ()) if call.again and rules.keep_empty else server
        channel, where = listener
        if call.channel >= 0 and (
            (call.channel == channel and where in (LIVE, UNREAD)) or not rules.probe
        ):
            yield Outcome(made._replace(credit=call.credit()), ())
        yield Outcome(made, ())
        return
    live = [message for message in waiting if server.expiry[message] != PASSED]
    if call.lease < 0:
        for message in waiting:
            if message not in live:
                yield _drop_instead(rules, server, call, [message])
                continue
            moved, delivery = _lease(server, message, OWN)
            yield Outcome(remember(moved, call, (delivery,)), (delivery,))
        return
    if not live:
        yield _drop_instead(rules, server, call, waiting)
        return
    server = _drop_expired(rules, server, waiting)
    # A shared lease: as many as there are. One that has ended, but is not given back, goes on.
    known = server.lease is not None and server.lease[0] == call.lease
    number = call.lease if known else max(call.lease, server.lease[0] if server.lease else 0) + 1
    if server.lease is not None and not known:
        # A failover has brought an older lease back: of the times at which it may end, the first.
        server = _end_lease(rules, server._replace(lease=(server.lease[0], True)))
    for order in permutations(live):
        moved = server._replace(lease=(number, False))
        batch: tuple[tuple[int, int], ...] = ()
        for message in order:
            moved, delivery = _lease(moved, message, number)
            batch += (delivery,)
        yield Outcome(remember(moved, call, batch), batch)


def _drop_instead(rules: Rules, server: Server, call: Call, messages: list[int]) -> Outcome:
    """A take that found expired messages only. It leaves no credit."""
    dropped = _drop_expired(rules, server, messages)
    return Outcome(remember(dropped, call, ()) if call.again and rules.keep_empty else dropped, ())


def _drop_expired(rules: Rules, server: Server, messages: Iterable[int]) -> Server:
    """Drop the messages among these that wait, and whose time has passed."""
    for message in messages:
        if server.store[message] >= 0 and server.expiry[message] == PASSED:
            server = server._replace(
                store=put(server.store, message, -1), gone=put(server.gone, message, EXPIRED)
            )
            if rules.result_of_expired:
                server = _note(rules, server, message, EXPIRED)
    return server


def _held(rules: Rules, server: Server, call: Call) -> Receipt | None:
    receipt = server.prepare[call.message]
    if receipt is None:
        return None
    stands = receipt.delivery == call.delivery and receipt.lease != REVOKED
    return receipt if stands or not rules.fence else None


def _ack(rules: Rules, server: Server, call: Call) -> Outcome:
    if call.verb == "ack" and server.outcomes and rules.ack_is_refused:
        return Outcome(server, KEEPS_RESULTS)
    if _held(rules, server, call) is None:
        if not rules.result_needs_receipt:
            server = _note(rules, server, call.message, SUCCEEDED)
        if not rules.result_once and server.settled[call.message]:
            server = _note(rules, server, call.message, SUCCEEDED)
        if not rules.count_once:
            server = server._replace(counted=server.counted + 1)
        return Outcome(server, "lost")
    if not rules.ack_wins and _is_requested(server, call.message):
        ended = _end_cancelled(rules, server, call.message)
        return Outcome(remember(ended, call, "done"), "done")
    server = _forget_request(rules, server, call.message)
    settled = server._replace(
        prepare=put(server.prepare, call.message, None),
        settled=put(server.settled, call.message, True),
        counted=server.counted + 1,
    )
    if call.verb == "ack_then":
        settled = _note(rules, settled, call.message, SUCCEEDED)
    return Outcome(remember(settled, call, "done"), "done")


def _cancel(rules: Rules, server: Server, call: Call) -> Outcome:
    message, receipt = call.message, server.prepare[call.message]
    if server.store[message] >= 0:
        if call.delivery:
            return Outcome(server, "old delivery")
        deleted = server._replace(store=put(server.store, message, -1))
        cancelled = _note_cancelled(rules, deleted, message)
        return Outcome(remember(cancelled, call, "done"), "done")
    if receipt is None:
        return Outcome(server, "dead" if server.dead[message] else "gone")
    if call.delivery and call.delivery != receipt.delivery and rules.cancel_names_delivery:
        return Outcome(server, "old delivery")
    if server.requests[message] == receipt.delivery:
        return Outcome(server, "already requested")
    if not rules.cancel_waits:
        return Outcome(remember(_end_cancelled(rules, server, message), call, "done"), "done")
    made = server._replace(requests=put(server.requests, message, receipt.delivery))
    return Outcome(remember(made, call, "done"), "done")


def _is_requested(server: Server, message: int) -> bool:
    """Whether the cancellation of the current delivery of a message was requested."""
    receipt, request = server.prepare[message], server.requests[message]
    return request > 0 and receipt is not None and request == receipt.delivery


def _forget_request(rules: Rules, server: Server, message: int) -> Server:
    if not server.requests[message] or not rules.request_for_one:
        return server
    return server._replace(requests=put(server.requests, message, 0))


def _note_cancelled(rules: Rules, server: Server, message: int) -> Server:
    server = server._replace(
        cancelled=put(server.cancelled, message, True),
        counted_cancelled=server.counted_cancelled + 1,
    )
    return _note(rules, server, message, CANCELLED) if rules.result_of_cancelled else server


def _end_cancelled(rules: Rules, server: Server, message: int) -> Server:
    """Delete a message in flight whose cancellation was requested."""
    ended = server._replace(
        prepare=put(server.prepare, message, None), requests=put(server.requests, message, 0)
    )
    return _note_cancelled(rules, ended, message)


def _note(rules: Rules, server: Server, message: int, letter: str) -> Server:
    """Write the result of a message that has ended, and remove old results."""
    if not server.outcomes or not (server.keeps[message] or not rules.result_by_mark):
        return server
    results = tuple(
        "" if m != message and (server.over[m] or not rules.result_until_end) else of_message
        for m, of_message in enumerate(server.results)
    )
    return server._replace(
        results=put(results, message, letter),
        written=put(server.written, message, server.written[message] + 1),
        over=put(server.over, message, False),
    )


def _purge(rules: Rules, server: Server, call: Call) -> Outcome:
    """Delete a message that waits, or a dead letter."""
    message = call.message
    if call.verb == "purge" and server.store[message] >= 0:
        purged = server._replace(
            store=put(server.store, message, -1), gone=put(server.gone, message, PURGED)
        )
        if rules.result_of_purged:
            purged = _note(rules, purged, message, PURGED)
    elif call.verb == "purge_dead" and server.dead[message]:
        purged = server._replace(
            dead=put(server.dead, message, False), gone=put(server.gone, message, DIED)
        )
        if not rules.result_of_dead_stays:
            purged = _note(rules, purged, message, PURGED)
    else:
        return Outcome(server, "gone")
    return Outcome(remember(purged, call, "done"), "done")


def _redrive(rules: Rules, server: Server, message: int) -> Server:
    """Make a dead letter wait again, with all retries. An expiry that has passed is removed."""
    expiry = server.expiry[message]
    server = server._replace(
        dead=put(server.dead, message, False),
        store=put(server.store, message, RETRIES),
        failed=put(server.failed, message, 0),
        expiry=put(server.expiry, message, "" if expiry == PASSED else expiry),
    )
    if not rules.redrive_drops_result:
        return server
    return server._replace(
        results=put(server.results, message, ""),
        written=put(server.written, message, 0),
        over=put(server.over, message, False),
    )


def _end_lease(rules: Rules, server: Server) -> Server:
    """The deliveries of a shared lease that ended become such whose deadline has passed."""
    if server.lease is None or not server.lease[1] or not rules.shared_rollback:
        return server
    number = server.lease[0]
    return server._replace(
        lease=None if rules.gone_lease_is_new else server.lease,
        prepare=tuple(
            receipt._replace(lease=REVOKED) if receipt and receipt.lease == number else receipt
            for receipt in server.prepare
        ),
    )


def _fail(
    rules: Rules, server: Server, message: int, costs: int = 1, has_result: bool = True
) -> Server:
    """Give a delivery back as failed."""
    receipt = server.prepare[message]
    assert receipt is not None
    server = server._replace(
        prepare=put(server.prepare, message, None),
        failed=put(server.failed, message, server.failed[message] + 1),
    )
    if receipt.left < costs:
        server = server._replace(dead=put(server.dead, message, True))
        return _note(rules, server, message, DIED) if has_result else server
    if not rules.result_at_end:
        server = _note(rules, server, message, DIED)
    return server._replace(store=put(server.store, message, receipt.left - costs))


def _give(rules: Rules, server: Server, call: Call) -> tuple[Server, Any]:
    """Scripts that make messages available."""
    if call.verb == "send":
        noted = server.keeps[call.message] and rules.send_notes_mark
        stored = server._replace(
            store=put(server.store, call.message, RETRIES), outcomes=server.outcomes or noted
        )
        return remember(stored, call, "stored"), "stored"
    if call.verb == "rollback":
        for message in MESSAGES:
            receipt = server.prepare[message]
            if receipt is None or receipt.lease >= OWN:
                continue
            if _is_requested(server, message) and rules.rollback_cancels:
                server = _end_cancelled(rules, server, message)
            else:
                costs = 1 if rules.rollback_costs else 0
                server = _fail(rules, server, message, costs, rules.result_of_rolled_back)
        return server, None
    if call.verb == "redrive":
        if not server.dead[call.message]:
            return server, "gone"
        return remember(_redrive(rules, server, call.message), call, "done"), "done"
    receipt = _held(rules, server, call)
    if receipt is None:
        return server, "lost"
    cancels = rules.nack_cancels if call.verb == "nack" else rules.release_cancels
    if cancels and _is_requested(server, call.message):
        return remember(_end_cancelled(rules, server, call.message), call, "done"), "done"
    if call.verb == "nack":
        return remember(_fail(rules, server, call.message), call, "done"), "done"
    left = receipt.left if rules.release_is_free else max(0, receipt.left - 1)
    given = server._replace(
        prepare=put(server.prepare, call.message, None),
        store=put(server.store, call.message, left),
    )
    return remember(given, call, "done"), "done"


def serve_credit(
    rules: Rules, server: Server, listener: Subscription, is_first: bool = True
) -> Iterator[tuple[Server, tuple[tuple[int, int], ...]]]:
    """Hand over what waits for a credit, or leave it to the next take.

    `is_first`: whether this call of the script has handed nothing over before.
    """
    yield server, ()  # it is not plain: left to the next take
    waiting = [message for message in MESSAGES if server.store[message] >= 0]
    if server.credit is None or not (waiting or is_first):
        return
    channel, calls = server.credit
    dropped = server._replace(credit=None)
    # The credit has lapsed. The script removes it even if no message waits, for example after the
    # only message was cancelled or died. If a message waits, perhaps no listener was counted.
    yield dropped, ()
    if not waiting:
        return
    at_all = listener[0] == channel
    counted = at_all and listener[1] in (LIVE, UNREAD)
    heard = at_all and listener[1] in (LIVE, REPLICA)
    if not counted and rules.ask_numsub and rules.count_publish:
        return
    kept = calls[1:] if rules.own_calls else calls[:-1]
    kept = kept if rules.spend_call else calls
    for message in waiting:
        moved, delivery = _lease(dropped, message, OWN)
        told = (delivery,) if heard else ()
        if not counted and rules.count_publish:
            yield dropped, told
            continue
        if rules.answer_is_kept:
            session, number = calls[0]
            answered = put(moved.sessions, session, (number, (delivery,)))
            moved = moved._replace(sessions=answered)
        if not rules.move_once:
            moved = moved._replace(store=server.store)
        if not kept:
            yield moved, told
            continue
        # It is good for more, and goes on with what is left.
        left = moved._replace(credit=(channel, kept))
        for after, others in serve_credit(rules, left, listener, is_first=False):
            yield after, told + others
