"""Queries of one engine on several topics, which call Redis together.

An engine may read many topics in one query. If each topic had its own connection and calls, even an
idle query would send many commands. So one connection receives the wake-ups of all topics. One call
of `next_ready` checks the slots of all topics, and one pipeline renews all topics. On a Redis
Cluster, the transport divides these calls between the nodes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from rmq.errors import OutcomeUnknown, RMQError, Unavailable
from rmq.features.spark import scripts
from rmq.features.spark.flows import NEVER, QueryFlows
from rmq.features.spark.query_blocking import Query
from rmq.features.spark.scripts import QueryLog
from rmq.kernel.consumer import scripts as consumer_scripts
from rmq.kernel.consumer.scripts import NEXT_READY_MAX
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.transport.flow.steps import POLL_S, ROUND_S, Command, Flow, Pipeline
from rmq.kernel.transport.single.blocking import Listener, Transport

LOOK_S = 5.0  # time between two checks of a few slots; each slot is checked once in ROUND_S


class JointQueries:
    """Waits for messages of several queries, and renews their leases.

    One thread at a time may call `ask` and `wait`. Another thread may call `keep` at the same time.

    Args:
        transport: Transport of the client that made the queries.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._listener: Listener | None = None
        self._topics: dict[bytes, QueryFlows] = {}  # by channel of the listener
        self._look_at = 0.0  # when to check some slots even without a wake-up
        self._turn = 0

    def ask(self, queries: Sequence[Query]) -> None:
        """Check which slots (parts of topics) have messages.

        `Query.take` then reads only these slots.

        Before the first `wait`, there is no subscription, and this method checks all slots. Later
        it checks only slots whose state may have changed.

        Raises:
            Unavailable, OutcomeUnknown: Redis does not answer.
        """
        topics = _open_flows(queries)
        try:
            if self._listener is not None:
                self._listen(topics, 0.0)
            self._ask(topics)
        except Exception:
            _forget(topics)
            raise

    def wait(self, queries: Sequence[Query], seconds: float) -> bool:
        """Wait until messages are available, but at most `seconds`.

        Return whether there may be messages.

        Raises:
            Unavailable, OutcomeUnknown: Redis does not answer.
        """
        topics = _open_flows(queries)
        if not topics:
            time.sleep(seconds)
            return False
        until = time.monotonic() + seconds
        try:
            while True:
                self._listen(topics, 0.0)
                if self._ask(topics):
                    return True
                soonest = min((_soonest(flows) for flows in topics), default=NEVER)
                pause_s = min(until, soonest, self._look_at) - time.monotonic()
                if pause_s > 0:
                    self._listen(topics, pause_s)
                if time.monotonic() >= until:
                    return any(flows.known.ready() for flows in topics)
        except Exception:
            _forget(topics)
            raise

    def keep(
        self, slots: Mapping[Query, Iterable[int]], report: Mapping[str, int] | None = None
    ) -> dict[Query, RMQError]:
        """Renew the leases of several queries, as `Query.keep` does for one query.

        Return the errors, by query.

        An error of one query does not affect the other queries.

        Args:
            slots: For each query, the slots whose lease the call renews.
            report: Numbers to store with each query. See `Query.keep`.
        """
        queries = {query._flows: query for query in slots}
        kept = {flows: slots[query] for flows, query in queries.items()}
        errors = self._transport.run(_keep(kept, scripts.encode_report(report)))
        return {queries[flows]: error for flows, error in errors.items()}

    def close(self) -> None:
        """Close the connection that receives the wake-ups. Messages in flight stay in flight."""
        if self._listener is not None:
            self._listener.close_connection()

    def _listen(self, topics: Sequence[QueryFlows], seconds: float) -> None:
        by_channel = {flows.context.channel: flows for flows in topics}
        if not by_channel:
            return
        if self._listener is None or not by_channel.keys() <= self._topics.keys():
            self.close()
            self._listener, self._topics = Listener(self._transport, list(by_channel)), by_channel
        self._topics |= by_channel  # a topic that was left and joined again has new flows
        for channel, payload in self._listener.wait(seconds):
            with suppress(ValueError):  # other signals are not numbers
                self._topics[channel].known.note_signals([int(payload)])
        if self._listener.has_missed:
            # Messages that were sent before the subscription sent no wake-up.
            self._listener.has_missed = False
            for flows in self._topics.values():
                flows.known.ready_at = []
        self._look(topics, self._listener.is_active)

    def _look(self, topics: Sequence[QueryFlows], is_active: bool) -> None:
        """Mark a few slots for a check every LOOK_S seconds, because a wake-up can get lost.

        In ROUND_S seconds, the method marks each slot once. If no wake-ups arrive, it marks all
        slots every POLL_S seconds.
        """
        now = time.monotonic()
        if now < self._look_at:
            return
        pause_s = LOOK_S if is_active else POLL_S
        self._look_at = now + pause_s
        every = [(flows.known, n) for flows in topics for n in range(len(flows.known.ready_at))]
        count = math.ceil(len(every) * LOOK_S / ROUND_S) if is_active else len(every)
        for _ in range(count):
            self._turn = (self._turn + 1) % len(every)
            known, index = every[self._turn]
            known.ready_at[index] = None

    def _ask(self, topics: Sequence[QueryFlows]) -> bool:
        for flows in topics:
            known = flows.known
            known.is_joint = True
            if self._listener is None:
                known.ready_at = []
            known.fit(len(flows.context.slots))
        places = [(flows, index) for flows in topics for index in flows.known.unknown()]
        for at in range(0, len(places), NEXT_READY_MAX):
            part = places[at : at + NEXT_READY_MAX]
            slots = [flows.context.slots[index] for flows, index in part]
            try:
                waits_us = self._transport.run(_next_ready(slots))
            except (Unavailable, OutcomeUnknown):
                raise
            except RMQError:
                return True  # the next `take` from the topic concerned raises the error
            now = time.monotonic()
            for (flows, index), wait_us in zip(part, waits_us, strict=True):
                # -2: the topic was deleted or created again, and `take` raises the error.
                ready_at = NEVER if wait_us == -1 else now + wait_us / 1_000_000
                flows.known.ready_at[index] = ready_at
        return any(flows.known.ready() for flows in topics)


def _open_flows(queries: Iterable[Query]) -> list[QueryFlows]:
    flows = [query._flows for query in queries]
    return [each for each in flows if each.context.is_open]


def _soonest(flows: QueryFlows) -> float:
    return min((at for at in flows.known.ready_at if at is not None), default=NEVER)


def _forget(topics: Iterable[QueryFlows]) -> None:
    for flows in topics:
        flows.known.forget()


def _next_ready(slots: Sequence[SlotKeys]) -> Flow[list[int]]:
    waits_us: list[int] = yield consumer_scripts.next_ready(slots, True, many_topics=True)
    return waits_us


def _keep(
    kept: Mapping[QueryFlows, Iterable[int]], report: bytes
) -> Flow[dict[QueryFlows, RMQError]]:
    """Renew the first slot of each topic. If this succeeds, also renew the other slots."""
    calls, errors = {}, dict[QueryFlows, RMQError]()
    for flows, slots in kept.items():
        try:
            yield from flows.open()
            calls[flows] = flows.renewals(slots, {}, {}, report)
        except RMQError as error:
            errors[flows] = error
    yield from _renew([(flows, first) for flows, (first, _) in calls.items()], errors)
    others = [(flows, call) for flows, (_, rest) in calls.items() for call in rest]
    yield from _renew([(flows, call) for flows, call in others if flows not in errors], errors)
    return errors


def _renew(
    calls: Sequence[tuple[QueryFlows, Command[QueryLog]]], errors: dict[QueryFlows, RMQError]
) -> Flow[None]:
    if not calls:
        return
    answers: Sequence[QueryLog | RMQError]
    try:
        answers = yield Pipeline([call for _, call in calls])
    except RMQError as error:
        answers = [error] * len(calls)
    for (flows, _), answer in zip(calls, answers, strict=True):
        try:
            if isinstance(answer, RMQError):
                raise answer
            flows.check_owner(answer)
        except RMQError as error:
            errors.setdefault(flows, error)
