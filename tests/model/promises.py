"""RMQ's promises, as checks of a state and of the step that led to it."""

from __future__ import annotations

from tests.model.protocol import (
    CANCELLED,
    DIED,
    GONE,
    LATE,
    MESSAGES,
    OWNER,
    PRODUCER,
    RETRIES,
    REVOKED,
    SLEEPER,
    SUCCEEDED,
    Server,
)
from tests.model.world import DURABLE, State, Step


def broken_promise(before: State, step: Step, after: State) -> str:
    """The promise that this step broke; '' if none."""
    server = after.server
    if server != before.server:
        text = _queues(server) or _results(server) or _old_receipt(before, step, after)
        text = text or _cancelled(before, step, after)
        if text:
            return text
        if not after.lost:
            text = _not_for_the_dead(before, step, after)
            if text:
                return text
    text = _confirmed(after) or _answers(before, step, after)
    if text or after.lost:
        return text
    return _leases(after) or _no_batch_is_lost(after)


def is_end(state: State) -> bool:
    """Whether every message is settled or dead, and nobody waits for a reply."""
    server = state.server
    return (
        state.unsent == 0
        and all(c.call is None for c in state.clients)
        and all(server.store[m] < 0 and server.prepare[m] is None for m in MESSAGES)
    )


def _queues(server: Server) -> str:
    for m in MESSAGES:
        queues = (server.store[m] >= 0) + (server.prepare[m] is not None) + server.dead[m]
        accepted = server.sessions[PRODUCER][0] > m
        queues += server.settled[m] + server.cancelled[m] + (server.gone[m] != "")
        if queues != accepted:
            if queues == 0:
                return "a stored message is not lost"
            return "a message is in exactly one queue, or settled"
        receipt = server.prepare[m]
        left = server.store[m] if receipt is None else receipt.left
        if (server.store[m] >= 0 or receipt) and left != RETRIES - server.failed[m]:
            return "only a failed delivery costs a retry, and it costs one"
        if server.dead[m] and server.failed[m] != RETRIES + 1:
            return "a message is dead when its retries are used up, not before"
    if server.counted != sum(server.settled):
        return "each settled message is counted once"
    if server.counted_cancelled != sum(server.cancelled):
        return "each cancelled message is counted once"
    return ""


def _results(server: Server) -> str:
    """Results agree with the queues."""
    if True not in server.keeps:
        return ""
    for m in MESSAGES:
        ends = {
            SUCCEEDED: server.settled[m], DIED: server.dead[m], CANCELLED: server.cancelled[m],
            server.gone[m]: server.gone[m] != "",
        }  # fmt: skip
        end = next((letter for letter, has_ended in ends.items() if has_ended), "")
        result, is_kept = server.results[m], server.keeps[m]
        if not is_kept:
            if result:
                return "a message that did not ask for its result has none"
        elif not end:
            if result:
                return "a message that waits or is in flight has no result"
        elif not result and not server.over[m]:
            return "a message that asked for its result has it from its end to the end of keeping"
        elif result not in ("", end):
            return "a result says how the message has ended"
        elif server.written[m] != 1:
            return "a result is written once"
    return ""


def _cancelled(before: State, step: Step, after: State) -> str:
    """What a request to cancel does, and what it does not."""
    if step.call is None:
        return ""  # time, or a failover to older data
    old, new, call = before.server, after.server, step.call
    for m in MESSAGES:
        receipt = old.prepare[m]
        is_requested = receipt is not None and old.requests[m] == receipt.delivery
        if is_requested and (new.store[m] >= 0 or new.dead[m]):
            return "a delivery whose cancellation was requested is not given back"
        is_current = receipt is not None and receipt.delivery == call.delivery
        is_acked = call.verb in ("ack", "ack_then") and is_current and m == call.message
        if is_acked and new.cancelled[m]:
            return "an ack wins over a request to cancel"
        if new.cancelled[m] and not (old.cancelled[m] or is_requested or old.store[m] >= 0):
            return "a message in flight ends as cancelled only after a request"
        request, receipt = new.requests[m], new.prepare[m]
        if request and (receipt is None or receipt.delivery != request):
            return "a request to cancel is for the current delivery"
        if (
            request != old.requests[m]
            and call.verb == "cancel"
            and call.delivery not in (0, request)
        ):
            return "a cancel of an old delivery changes nothing"
    return ""


def _old_receipt(before: State, step: Step, after: State) -> str:
    call = step.call
    if call is None or call.verb not in ("ack", "ack_then", "nack", "release"):
        return ""
    receipt = before.server.prepare[call.message]
    stands = receipt is not None and receipt.delivery == call.delivery
    old, new = before.server, after.server
    if not stands and (old.prepare, old.store, old.settled, old.results) != (
        new.prepare,
        new.store,
        new.settled,
        new.results,
    ):
        return "an old receipt changes nothing"
    return ""


def _not_for_the_dead(before: State, step: Step, after: State) -> str:
    sleeper = before.clients[SLEEPER]
    if step.call is not None and OWNER[step.call.who] == SLEEPER:
        return ""  # its own take
    if before.listener[1] != GONE or sleeper.alive:
        return ""
    answer, earlier = after.server.sessions[SLEEPER:], before.server.sessions[SLEEPER:]
    moved = after.server.delivered > before.server.delivered
    if moved and answer != earlier:
        return "nothing is handed over to a consumer whose connection has ended"
    return ""


def _confirmed(after: State) -> str:
    server = after.server
    for m in MESSAGES:
        if after.confirmed[m] and (m == DURABLE or not after.lost):
            queues = server.store[m] >= 0 or server.prepare[m] is not None or server.dead[m]
            if not (queues or server.settled[m] or server.cancelled[m] or server.gone[m]):
                return "a confirmed message is not lost"
    return ""


def _answers(before: State, step: Step, after: State) -> str:
    """A call that is repeated gets the answer of what it did."""
    call = step.call
    if call is None or step.what != "answered" or not call.again:
        return ""
    last, answer = before.server.sessions[call.who]
    if last == call.number and answer == "done" and step.reply != "done":
        return f"a repeated {call.verb} is answered as the first one"
    if last > call.number:
        return f"a caller that waits is never answered {LATE!r}"
    return ""


def _leases(after: State) -> str:
    holders: dict[int, int] = {}
    for who, client in enumerate(after.clients):
        settling = client.call.delivery if client.call is not None else 0  # no longer worked on
        for held in client.held if client.alive else ():
            if not held.valid or held.delivery == settling:
                continue
            if holders.setdefault(held.message, who) != who:
                return "two consumers never have a message under valid leases"
            receipt = after.server.prepare[held.message]
            stands = receipt is not None and receipt.delivery == held.delivery
            if not stands:
                return "what a consumer has under a valid lease is in the PrepareQueue"
    return ""


def _no_batch_is_lost(after: State) -> str:
    """Each delivery is known to its consumer, or will be: no retry is lost for a lost reply."""
    for m in MESSAGES:
        receipt = after.server.prepare[m]
        if receipt is None or receipt.lease == REVOKED:
            continue
        known = any(h.delivery == receipt.delivery for c in after.clients for h in c.held)
        for session, (last, answer) in enumerate(after.server.sessions):
            if not known and type(answer) is tuple and (m, receipt.delivery) in answer:
                client = after.clients[OWNER[session]]
                known = not client.alive or client.repeats((session, last))
        if not known:
            return "a delivery whose reply was lost is found again by its consumer"
    return ""
