"""The clients around the scripts, and what goes wrong: every step from a state.

A call and its reply are one step, unless a fault comes between. A fault costs one of `faults`. A
client whose call has no reply repeats it, unchanged, before it does anything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.model.protocol import (
    CANCELLER,
    ENDED,
    FUTURE,
    GONE,
    KEEPS_RESULTS,
    LATE,
    LIVE,
    MESSAGES,
    NAMES,
    OWN,
    OWNER,
    PASSED,
    PLAIN,
    PRODUCER,
    REPLICA,
    SECOND,
    SLEEPER,
    UNREAD,
    WORKER,
    Call,
    CallNumber,
    Outcome,
    Rules,
    Server,
    Subscription,
    put,
    run,
)

DURABLE = 0  # the message that is sent with a durability: it is confirmed by a replica
LAG = 2  # commands that a replica may be behind
KINDS = ("reply", "copy", "death", "failover")
VERBS = {PLAIN: ("ack", "nack", "release"), WORKER: ("ack",), SLEEPER: ("ack", "release")}


@dataclass(frozen=True)
class Bounds:
    """How far the search goes."""

    messages: int = 2
    faults: int = 1
    releases: int = 1
    sleeps: int = 1  # how often the sleeper leaves a credit
    hand_overs: int = 1  # that its credit is good for: 1 or 2
    kinds: frozenset[str] = frozenset(KINDS)  # of faults
    has_plain: bool = True  # whether there is a plain consumer
    cancels: int = 0  # how often a message is cancelled
    keeps: int = 0  # how many messages keep their results: the first ones
    expire: int = 0  # how many messages expire: the first ones
    removals: int = 0  # how often a message is purged or redriven


class Held(NamedTuple):
    """A delivery that a consumer has, and whether its lease is valid."""

    message: int
    delivery: int
    valid: bool


class Client(NamedTuple):
    """The producer, a consumer, or the program that cancels messages."""

    alive: bool = True
    number: int = 0  # of the last command of its session
    call: Call | None = None  # it has no reply yet
    held: tuple[Held, ...] = ()
    asleep: bool = False  # it has left a credit
    awaits: tuple[CallNumber, ...] = ()  # calls of that credit, whose answers may have come
    second: int = 0  # the number of the last call of its second session
    lease: int = 0  # the number of its shared lease
    keeps_results: bool = False  # it knows that an ack has to write results

    def numbered(self, session: int, number: int) -> Client:
        return self._replace(second=number) if session == SECOND else self._replace(number=number)

    def repeats(self, wanted: CallNumber) -> bool:
        """Whether it repeats this call, unless it hears the answer first."""
        call = self.call
        if call is not None and (
            (call.who, call.number) == wanted or (SECOND, call.second) == wanted
        ):
            return True
        return wanted in self.awaits


class State(NamedTuple):
    """All there is at one moment."""

    server: Server = Server()
    clients: tuple[Client, ...] = (Client(),) * 5
    listener: Subscription = (1, LIVE)  # of the sleeper
    copy: Call | None = None  # a copy of a command that is still in the network
    older: tuple[Server, ...] = ()  # what a replica may still have
    confirmed: tuple[bool, ...] = (False, False)  # what the producer was told
    faults: int = 0  # that may still come
    releases: int = 0
    sleeps: int = 0
    cancels: int = 0
    removals: int = 0
    unsent: int = len(MESSAGES)
    lost: bool = False  # a failover has lost commands


class Step(NamedTuple):
    """An event: a text with the names, and what the real scripts need to do the same."""

    what: str
    call: Call | None = None
    is_fault: bool = False
    runs: bool = False  # the script of the call runs
    reply: Any = None

    def told(self) -> str:
        call = self.call
        if call is None:
            return self.what
        words = [NAMES[call.who], call.verb.replace("_", " ")]
        words += [f"message {call.message}"] if call.message >= 0 else []
        words += ["and offers a credit"] if call.verb == "take" and call.channel >= 0 else []
        words += ["again"] if call.again else []
        return f"{' '.join(words)}: {self.what}"


Steps = Iterator[tuple[Step, State]]


def first_state(bounds: Bounds) -> State:
    server = Server(
        keeps=tuple(m < bounds.keeps for m in MESSAGES),
        expiry=tuple(FUTURE if m < bounds.expire else "" for m in MESSAGES),
    )
    # The plain consumer learns from a refused ack that the slot keeps results.
    knows = Client(keeps_results=bounds.keeps > 0)
    return State(
        server=server, clients=(Client(), Client(), knows, knows, Client()),
        faults=bounds.faults, releases=bounds.releases, sleeps=bounds.sleeps,
        cancels=bounds.cancels, removals=bounds.removals, unsent=bounds.messages,
    )  # fmt: skip


def steps(rules: Rules, bounds: Bounds, state: State) -> Steps:
    """Everything that may happen next."""
    for who, client in enumerate(state.clients):
        if client.alive and (who != PLAIN or bounds.has_plain):
            for call in calls(bounds, state, who, client):
                yield from _calling(rules, bounds, state, call)
    yield from _leases_end(state)
    yield from _times_pass(state)
    for verb in ("rollback", "lease_rollback", *(["drop_expired"] if bounds.expire else [])):
        yield from _system(rules, bounds, state, Call(verb, PLAIN))
    yield from _listening(rules, state)
    if state.faults:
        yield from _faults(bounds, state)
    if state.copy is not None:
        step = Step("a late copy arrives", state.copy, runs=True)
        for outcome in run(rules, state.server, state.listener, state.copy):
            made = _written(bounds, state, outcome.server)._replace(copy=None)
            yield step, _heard(made, outcome)


# --- calls ---------------------------------------------------------------------------------------


def calls(bounds: Bounds, state: State, who: int, client: Client) -> Iterator[Call]:
    """The calls that a client may make next."""
    if client.call is not None:
        yield client.call
        return
    if client.asleep:
        yield Call("withdraw", who, channel=state.listener[0])
        if client.awaits[0][0] == who:  # its session stays at the number that is awaited
            return
    elif client.awaits:
        session, number = client.awaits[0]
        yield Call("take", session, number, again=True)
        return
    if who == PRODUCER:
        if state.unsent:
            yield Call("send", who, client.number + 1, message=client.number)
        return
    if who == CANCELLER:
        if state.cancels:
            yield from _cancels(state, client.number + 1)
        for m in range(state.clients[PRODUCER].number if state.removals else 0):
            for verb in ("purge", "purge_dead", "redrive"):
                yield Call(verb, who, client.number + 1, m)
        return
    number = client.number + 1
    for held in client.held:
        for verb in VERBS[who]:
            if verb != "release" or state.releases:
                if verb == "ack" and client.keeps_results:
                    verb = "ack_then"
                yield Call(verb, who, number, held.message, held.delivery)
    if client.held or client.asleep:
        return
    if who == WORKER:
        yield Call("take", who, number, lease=client.lease)
        return
    yield Call("take", who, number)
    if who == SLEEPER and state.sleeps and state.listener[1] in (LIVE, REPLICA):
        second = client.second + 1 if bounds.hand_overs > 1 else 0
        yield Call("take", who, number, channel=state.listener[0], second=second)


def _cancels(state: State, number: int) -> Iterator[Call]:
    """The cancel of each message that was sent, and of each delivery that a consumer has had."""
    sent = state.clients[PRODUCER].number
    for message in range(sent):
        yield Call("cancel", CANCELLER, number, message)
    for held in dict.fromkeys(h[:2] for client in state.clients for h in client.held):
        yield Call("cancel", CANCELLER, number, *held)


def _calling(rules: Rules, bounds: Bounds, state: State, call: Call) -> Steps:
    outcomes = list(run(rules, state.server, state.listener, call))
    for outcome in outcomes:
        made = _written(bounds, state, outcome.server)
        yield (
            Step("answered", call, runs=True, reply=outcome.reply),
            _answered(rules, made, call, outcome),
        )
    if not state.faults or call.verb == "withdraw":
        return
    waiting = _waiting(state, call)._replace(faults=state.faults - 1)
    if "reply" in bounds.kinds and not call.again:
        yield Step("lost on its way", call, is_fault=True), waiting
    for outcome in outcomes:
        if "reply" in bounds.kinds:
            made = _written(bounds, waiting, outcome.server)
            yield Step("the reply is lost", call, is_fault=True, runs=True), _heard(made, outcome)
    if "copy" in bounds.kinds and state.copy is None:
        yield Step("delayed", call, is_fault=True), waiting._replace(copy=call)


def _waiting(state: State, call: Call) -> State:
    """The client repeats the call before its next one."""
    who = OWNER[call.who]
    client = state.clients[who]._replace(call=call._replace(again=True))
    client = client.numbered(call.who, call.number)
    if call.second:
        client = client._replace(second=call.second)
    return state._replace(clients=put(state.clients, who, client))


def _written(bounds: Bounds, state: State, server: Server) -> State:
    """The data in Redis now; a replica may still be where it was."""
    if server == state.server:
        return state
    older: tuple[Server, ...] = ()
    if "failover" in bounds.kinds and state.faults:
        older = (*state.older, state.server)[-LAG:]
    return state._replace(server=server, older=older)


def _answered(rules: Rules, state: State, call: Call, outcome: Outcome) -> State:
    """The client has the reply."""
    who = OWNER[call.who]
    client, reply = state.clients[who], outcome.reply
    written = state.server.sessions[call.who][0] == call.number
    if call.verb == "withdraw":
        # What is gone of a credit was used, or has lapsed: those calls are repeated, which tells.
        gone = client.awaits[: len(client.awaits) - reply] if rules.answer_is_kept else ()
        client = client._replace(asleep=False, awaits=gone)
        return state._replace(clients=put(state.clients, who, client))
    # A number that no server and no network knows may be used again: it makes no difference.
    used = call.number if written or call.again or reply == LATE else call.number - 1
    awaits = tuple(a for a in client.awaits if a != (call.who, call.number))
    client = client._replace(call=None, awaits=awaits).numbered(call.who, used)
    if reply == KEEPS_RESULTS:  # it makes the call that writes results, under the same number
        then = call._replace(verb="ack_then", again=False)
        client = client._replace(call=then, keeps_results=True).numbered(call.who, call.number)
    elif call.verb == "send":
        client = client._replace(number=call.number)
        confirmed = put(state.confirmed, call.message, True)
        state = state._replace(confirmed=confirmed, unsent=state.unsent - 1)
        if call.message == DURABLE and rules.wait_for_replica:
            state = state._replace(older=())  # WAIT: the replica has all of this
    elif call.verb == "cancel":
        state = state._replace(cancels=max(0, state.cancels - 1))
    elif call.verb in ("purge", "purge_dead", "redrive"):
        state = state._replace(removals=max(0, state.removals - 1))
    elif call.verb == "take":
        client = _received(rules, state, client, call, outcome)
        state = state._replace(sleeps=state.sleeps - client.asleep)
    else:
        client = client._replace(held=tuple(h for h in client.held if h.delivery != call.delivery))
        if call.verb == "release" and reply == "done":
            state = state._replace(releases=max(0, state.releases - 1))
    return _heard(state._replace(clients=put(state.clients, who, client)), outcome)


def _received(rules: Rules, state: State, client: Client, call: Call, outcome: Outcome) -> Client:
    """A consumer has the answer to its take."""
    server, reply = state.server, outcome.reply
    if reply == LATE:
        return client
    held = list(client.held)
    for message, delivery in reply:
        receipt = server.prepare[message]
        valid = receipt is not None and receipt.delivery == delivery and receipt.lease >= OWN
        held.append(Held(message, delivery, valid and not _has_ended(server, receipt.lease)))
    if call.who == WORKER and reply and server.lease is not None:
        client = client._replace(lease=server.lease[0])
    if call.channel >= 0 and not reply and server.credit == call.credit():
        client = client._replace(asleep=True, awaits=call.credit()[1], number=call.number)
        client = client._replace(second=call.second or client.second)
    elif call.second and call.again and not outcome.unused and rules.recover_all:
        # The credit may have stood, and have been used up.
        client = client._replace(awaits=((SECOND, call.second),))
    return client._replace(held=tuple(held))


def _has_ended(server: Server, lease: int) -> bool:
    return lease > 0 and (server.lease is None or server.lease[0] != lease or server.lease[1])


def _heard(state: State, outcome: Outcome) -> State:
    """The sleeper hears what was handed over, if it awaits it."""
    client = state.clients[SLEEPER]
    if not outcome.heard or not client.asleep:
        return state
    for message, delivery in outcome.heard[: len(client.awaits)]:
        held = (*client.held, Held(message, delivery, True))
        client = client._replace(awaits=client.awaits[1:], held=held)
    client = client._replace(asleep=client.awaits != ())
    return state._replace(clients=put(state.clients, SLEEPER, client))


def _system(rules: Rules, bounds: Bounds, state: State, call: Call) -> Steps:
    """Rollbacks, by whoever comes first; they have no session and are safe to repeat."""
    for outcome in run(rules, state.server, state.listener, call):
        if outcome.server != state.server:
            made = _written(bounds, state, outcome.server)
            yield Step("done", call, runs=True), _heard(made, outcome)


# --- time and faults -----------------------------------------------------------------------------


def _leases_end(state: State) -> Steps:
    """A lease ends. All leases of receipts that the server does not have are ended by then."""
    server = state.server
    for message in MESSAGES:
        receipt = server.prepare[message]
        if receipt is not None and receipt.lease == 0:
            ended = receipt._replace(lease=ENDED)
            made = server._replace(prepare=put(server.prepare, message, ended))
            told = f"the lease of delivery {receipt.delivery} ends"
            yield Step(told), _invalid(state._replace(server=made), {receipt.delivery})
    if server.lease is not None and not server.lease[1]:
        number = server.lease[0]
        deliveries = {r.delivery for r in server.prepare if r is not None and r.lease == number}
        made = server._replace(lease=(number, True))
        yield Step("the shared lease ends"), _invalid(state._replace(server=made), deliveries)


def _times_pass(state: State) -> Steps:
    """The expiry of a message passes, or the keeping of a result ends."""
    server = state.server
    for m in MESSAGES:
        lives = server.store[m] >= 0 or server.prepare[m] is not None or server.dead[m]
        if server.expiry[m] == FUTURE and lives:
            passed = server._replace(expiry=put(server.expiry, m, PASSED))
            yield Step(f"the expiry of message {m} passes"), state._replace(server=passed)
        if server.results[m] and not server.over[m]:
            over = server._replace(over=put(server.over, m, True))
            yield Step(f"the keeping of message {m} ends"), state._replace(server=over)


def _invalid(state: State, deliveries: set[int]) -> State:
    return state._replace(
        clients=tuple(
            client._replace(
                held=tuple(
                    h._replace(valid=False) if h.delivery in deliveries else h for h in client.held
                )
            )
            if client.held
            else client
            for client in state.clients
        )
    )


def _listening(rules: Rules, state: State) -> Steps:
    """The fates of the sleeper's connection."""
    channel, where = state.listener
    if where == UNREAD:
        yield (
            Step("the server notices the dead connection"),
            state._replace(listener=(channel, GONE)),
        )
    sleeper = state.clients[SLEEPER]
    if where != LIVE and sleeper.alive and (not sleeper.asleep or not rules.withdraw):
        new = channel + 1 if rules.new_channel else channel
        awake = put(
            state.clients,
            SLEEPER,
            sleeper._replace(asleep=False, awaits=sleeper.awaits if rules.withdraw else ()),
        )
        yield (
            Step("the sleeper subscribes anew"),
            state._replace(listener=(new, LIVE), clients=awake),
        )


def _faults(bounds: Bounds, state: State) -> Steps:
    state = state._replace(faults=state.faults - 1)
    channel, where = state.listener
    if "death" in bounds.kinds:
        yield from _deaths(state, channel, where)
    if "failover" not in bounds.kinds:
        return
    moved = channel, REPLICA if where == LIVE else GONE
    for server in dict.fromkeys((state.server, *state.older)):
        behind = server != state.server
        told = "failover to a replica that is behind" if behind else "failover"
        yield (
            Step(told, is_fault=True),
            state._replace(
                server=server,
                older=(),
                listener=moved,
                lost=state.lost or behind,
                faults=state.faults,
            ),
        )


def _deaths(state: State, channel: int, where: str) -> Steps:
    if where == LIVE:
        yield (
            Step("the sleeper's connection dies", is_fault=True),
            state._replace(listener=(channel, UNREAD)),
        )
    for who in (WORKER, SLEEPER):
        client = state.clients[who]
        if client.alive:
            dead = client._replace(alive=False, call=None, asleep=False, awaits=())
            listener = (channel, UNREAD if where == LIVE else where) if who == SLEEPER else None
            yield (
                Step(f"the {NAMES[who]} dies", is_fault=True),
                state._replace(
                    clients=put(state.clients, who, dead), listener=listener or state.listener
                ),
            )
