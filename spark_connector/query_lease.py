"""Lease messages of one or several topics for a streaming query.

The lease belongs to Spark's source runner, the only Python process that runs as long as the query.
A thread renews the lease while Spark's tasks run. If the JVM is killed, the thread ends, so that
the next driver can start.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

import rmq
from rmq.connectors import Held, JointQueries
from rmq.errors import OutcomeUnknown, QueryOwned, TopicNotFound, TopicVanished, Unavailable
from spark_connector.connection import RETRY_S, connect, retry_while_away
from spark_connector.offset import Numbers, Offset, Position
from spark_connector.options import StreamOptions

_MIN_OWNER_S = 1.0  # shortest owner lease
_JVM_CHECK_S = 1.0  # time between two checks whether the JVM is alive
_log = logging.getLogger("spark_connector")
T = TypeVar("T")


def owner(process: int | None = None) -> str:
    """Return a name for the process that runs the query. By default, it is the JVM of this process.

    If the query restarts in the same JVM, the owner is the same, because a JVM does not run a query
    twice. The name has the start time of the JVM, because process ids can be used again.
    """
    jvm = process or os.getppid()
    try:
        started = Path(f"/proc/{jvm}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        command = ["ps", "-o", "lstart=", "-p", str(jvm)]
        with contextlib.suppress(OSError):
            output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
            started = output.strip().replace(" ", "-") or "?"
    return f"{socket.gethostname()[:100]}:{jvm}:{started}"


class QueryLease:
    """The lease of one run of a query.

    Only one thread at a time may receive messages. At the same time, other threads may settle
    messages and renew the lease.
    """

    def __init__(
        self,
        options: StreamOptions,
        run: str,
        orphaned: Callable[[], None] | None = None,
        owned_by: str | None = None,
    ) -> None:
        """Prepare the lease without a call to Redis.

        When the JVM has ended, the thread that renews the lease calls `orphaned`. If `owned_by`
        names an owner, this thread does not check the JVM.
        """
        self._options = options
        self._jvm = None if owned_by else os.getppid()
        # Read the owner now. After the JVM has ended, the parent is another process.
        self._owner = owned_by or owner()
        self._orphaned = orphaned
        self.run = run
        self.report: Callable[[], dict[str, int]] | None = None  # figures sent with a renewal
        self._client = connect(options.at)
        self._queries: dict[str, rmq.Query] = {}
        self._joint = JointQueries(self._client._transport)
        self._retry_s = min(RETRY_S, options.lease_s)
        self.lost: set[str] = set()  # topics that are gone, if onTopicLoss is `continue`
        self._ours: set[str] = set()  # topics whose query this process owns
        self._ended_by: Exception | None = None  # error from the renewing thread, ends the query
        self._holding: dict[str, Numbers] = {}  # newest taken sequence number, by topic and slot
        self._settled: dict[str, Numbers] = {}  # newest settled sequence number, by topic and slot
        # Last sequence number of the batches that this process has settled completely, by topic and
        # slot.
        self._ended: dict[str, Numbers] = {}
        self.bytes = self.batch_bytes = 0  # bytes that tasks have read: in total, in the last batch
        self._renewed_at = time.monotonic()
        self._lapses = 0
        self._renewer: threading.Thread | None = None
        self._stopped = threading.Event()

    def query(self, topic: str) -> rmq.Query:
        """Return RMQ's query object for one topic."""
        if topic not in self._queries:
            self._queries[topic] = self._query_as(self._client, topic, self._options.owner_s)
        return self._queries[topic]

    def _query_as(self, client: rmq.Client, topic: str, owner_s: float) -> rmq.Query:
        # If onClaimLoss is `fail`, a task fails when messages of its part are missing.
        exact = self._options.on_loss == "fail"
        return client.topic(topic).query(
            self.run, self._owner, lease=self._options.lease_s, owner_lease=owner_s, exact=exact
        )

    def topics(self) -> list[str]:
        """Return the topics that the query reads now."""
        pattern = self._options.pattern
        if pattern is None:
            return list(self._options.topics)
        known = retry_while_away(self._client.admin.topics, self._retry_s)
        return [name for name in known if pattern.fullmatch(name)]

    def check(self) -> None:
        """Raise the error with which the renewing thread ended the query, if there is an error.

        Raises:
            QueryOwned: Another driver has taken over the query.
            TopicNotFound, TopicVanished: A topic was deleted, and onTopicLoss is `fail`.
        """
        if self._ended_by is not None:
            raise self._ended_by

    def _unless_gone(self, topic: str, call: Callable[[], T], otherwise: T) -> T:
        """Repeat a call until Redis answers. If the topic was deleted, return `otherwise`.

        Raises:
            TopicNotFound, TopicVanished: The topic was deleted, and onTopicLoss is `fail`.
        """
        try:
            return retry_while_away(call, self._retry_s)
        except (TopicNotFound, TopicVanished) as error:
            self._lose(topic, error)
            return otherwise

    def slots(self, topic: str) -> int:
        """Return the number of slots of a topic. Raise TopicNotFound if there is no such topic."""
        return retry_while_away(self.query(topic).slots, self._retry_s)

    def late_ms(self, topics: Iterable[str]) -> int:
        """Return for how many ms the oldest waiting message has been due."""
        stats = self._client.admin.stats
        found = (self._unless_gone(topic, partial(stats, topic), None) for topic in topics)
        return max((counts["late_ms"] for counts in found if counts is not None), default=0)

    def commands(self) -> int:
        """Return how many commands this process has sent to Redis for the query."""
        return self._client._transport.commands

    def waiting(self, topics: Iterable[str]) -> dict[str, list[int]]:
        """Return how many messages the query can receive now from each slot of each topic.

        A slot is a part of a topic.
        """
        return {topic: self._unless_gone(topic, self.query(topic).waiting, []) for topic in topics}

    def hold(self, topic: str, after: Numbers, upto: Numbers | None = None) -> list[Held]:
        """Renew the lease in all slots of a topic.

        Return how many messages the query has in each slot (part of the topic). The result counts
        the messages between the sequence numbers `after` and `upto`. The first call waits until the
        ownership of an earlier driver has expired. If the topic was deleted, the result is empty.
        If a deleted topic was created again, pass an empty `after`.

        Raises:
            QueryOwned: Another driver is running this query.
            TopicNotFound, TopicVanished: The topic was deleted, and onTopicLoss is `fail`.
        """
        if topic in self.lost and after:
            return []
        query = self.query(topic)
        until = time.monotonic() + self._options.owner_s + _MIN_OWNER_S
        while True:
            try:
                held = self._unless_gone(topic, partial(query.renew, after, upto), list[Held]())
                break
            except QueryOwned as error:
                left_s = until - time.monotonic()
                if topic in self._ours or left_s <= 0:
                    raise
                time.sleep(min(left_s, max(0.0, error.left_s) + 0.05, 0.5))
        if not held:
            return []
        if self._options.on_topic_loss == "continue" and len(held) < len(upto or after):
            self.leave(topic)  # the topic was created again with fewer slots
            return []
        self.lost.discard(topic)
        self._holding.setdefault(topic, {}).update(
            (slot, state.newest) for slot, state in enumerate(held)
        )
        self._settled.setdefault(topic, {}).update(
            (slot, state.settled) for slot, state in enumerate(held)
        )
        self._ours.add(topic)
        if self._renewer is None:
            self._renewer = threading.Thread(target=self._renew, name="rmq-lease", daemon=True)
            self._renewer.start()
        return held

    def _renew(self) -> None:
        """Renew the lease until the query ends, or until another driver owns the query.

        The thread renews the ownership in one slot (part) of each topic. It renews the lease of the
        messages less often. If a renewal fails for a topic, the thread repeats it, and renews the
        other topics in time.
        """
        owner_pause_s = min(self._options.lease_s, self._options.owner_s) / 3
        lease_pause_s = self._options.lease_s / 3
        due = time.monotonic() + owner_pause_s
        lease_due = time.monotonic() + min(lease_pause_s, owner_pause_s)
        while not self._stopped.wait(min(_JVM_CHECK_S, max(0.0, due - time.monotonic()))):
            if self._jvm is not None and os.getppid() != self._jvm:
                if self._orphaned is not None:
                    self._orphaned()
                return
            now = time.monotonic()
            if now < due:
                continue
            due = now + owner_pause_s
            renews_lease = now >= lease_due
            try:
                if self._renew_topics(renews_lease) and renews_lease:
                    self._note_renewal()
                    lease_due = now + lease_pause_s
            except QueryOwned as error:
                self._ended_by = error
                return
            except Exception:
                _log.exception("the lease of the query was not renewed, and is tried again")

    def _renew_topics(self, renews_lease: bool) -> bool:
        """Keep other processes from running the query.

        If requested, also renew its messages' lease.

        Return whether all renewals succeeded.

        Raises:
            QueryOwned: Another driver owns the query.
        """
        report = self.report() if self.report is not None else None
        are_renewed = True
        queries = {self.query(topic): topic for topic in list(self._ours)}
        slots = {
            query: self._held_slots(topic) if renews_lease else ()
            for query, topic in queries.items()
        }
        for query, error in self._joint.keep(slots, report).items():
            topic = queries[query]
            if isinstance(error, QueryOwned):
                raise error
            if isinstance(error, (TopicNotFound, TopicVanished)):
                self._ours.discard(topic)
                try:
                    self._lose(topic, error)
                except rmq.RMQError as loss:
                    self._ended_by = loss
            else:
                are_renewed = False
                if not isinstance(error, (Unavailable, OutcomeUnknown)):
                    _log.warning("the lease in topic %r was not renewed: %s", topic, error)
        return are_renewed

    def lapses(self) -> int:
        """Return the number of pauses in which the lease of the query may have expired."""
        return self._lapses + (time.monotonic() - self._renewed_at > self._options.lease_s)

    def _note_renewal(self) -> None:
        now = time.monotonic()
        self._lapses += now - self._renewed_at > self._options.lease_s
        self._renewed_at = now

    def _held_slots(self, topic: str) -> list[int]:
        settled = self._settled.get(topic, {})
        newest = dict(self._holding.get(topic, {}))
        return [slot for slot, number in newest.items() if number > settled.get(slot, 0)]

    def held(self) -> int:
        """Return how many messages the query has, as far as this process knows."""
        return sum(
            max(0, number - self._settled.get(topic, {}).get(slot, 0))
            for topic, numbers in list(self._holding.items())
            for slot, number in list(numbers.items())
        )

    def take(
        self, after: Mapping[str, Numbers], most: int | None, most_bytes: int | None = None
    ) -> dict[str, Numbers]:
        """Receive the next messages of each topic. Each topic gives about the same number.

        Args:
            after: Last received sequence number of each slot (part) of each topic.
            most: Maximum number of messages, or None for no limit.
            most_bytes: Maximum size of the messages in bytes, or None for no limit.

        Returns:
            The newest sequence number of each slot of each topic.
        """
        newest = {topic: dict(numbers) for topic, numbers in after.items()}
        left = math.inf if most is None else most
        hungry = [topic for topic in newest if topic not in self.lost]
        if left > 0:
            asked = [self.query(topic) for topic in hungry]
            retry_while_away(partial(self._joint.ask, asked), self._retry_s)
        while hungry and left > 0:
            still_hungry = []
            for place, topic in enumerate(hungry):
                share = math.inf if left == math.inf else math.ceil(left / (len(hungry) - place))
                if not share:
                    continue
                found = self._take(topic, newest[topic], share, most_bytes, len(hungry))
                count = sum(found.values()) - sum(newest[topic].values())
                newest[topic] = found
                left -= count
                if count >= share:
                    still_hungry.append(topic)
            hungry = [] if left == math.inf or most_bytes else still_hungry
        return newest

    def _take(
        self, topic: str, after: Numbers, share: float, most_bytes: int | None, topics: int
    ) -> Numbers:
        query = self.query(topic)
        most = None if share == math.inf else int(share)
        room = None if most_bytes is None else max(1, most_bytes // topics)
        found = self._unless_gone(topic, lambda: query.take(after, most, room), None)
        if found is None:
            return after
        self._holding.setdefault(topic, {}).update(found)
        return found

    def wait(self, topics: Iterable[str], seconds: float) -> None:
        """Wait until messages may be available. Wait at most `seconds` seconds."""
        present = [self.query(topic) for topic in topics if topic not in self.lost]
        retry_while_away(partial(self._joint.wait, present, seconds), self._retry_s)

    def was_read(self, topic: str, slot: int, since: int) -> bool:
        """Return whether a task has read messages of a slot (part of the topic)."""
        handed = partial(self.query(topic).handed, slot)
        return topic not in self.lost and self._unless_gone(topic, handed, 0) > since

    def settle(self, end: Offset) -> int:
        """Settle the batch up to the offset `end`.

        Return how many messages could not be settled.
        """
        missing = bytes_read = 0
        for topic, at in end.topics.items():
            if topic in self.lost:
                continue
            done = self._ended.setdefault(topic, {})
            ends = {slot: number for slot, number in at.slots.items() if number > done.get(slot, 0)}
            if ends:
                query = self.query(topic)
                settle, before = partial(query.settle, ends, at.held), query.read_bytes
                result = self._unless_gone(topic, settle, None)
                if result is None:
                    continue
                missing += result.missing
                bytes_read += query.read_bytes - before
                self._settled.setdefault(topic, {}).update(ends)
                if not result.missing:
                    done.update(ends)
        if bytes_read:
            self.bytes, self.batch_bytes = self.bytes + bytes_read, bytes_read
        return missing

    def again(self, end: Offset) -> None:
        """Let the query receive a batch again. The batch ends at the offset `end`."""
        for topic, at in self._present(end):
            self._unless_gone(topic, partial(self.query(topic).again, at.slots), None)

    def begun(self, topic: str, batch: str, by: str) -> int:
        """Return how many runs of the query have started the same batch.

        This run counts as well.
        """
        return self._unless_gone(topic, partial(self.query(topic).begun, batch, by), 1)

    def reject(self, end: Offset, reason: str) -> int:
        """Make dead letters of all messages up to the offset `end`. Return how many there were."""
        return sum(
            self._unless_gone(topic, partial(self.query(topic).reject, at.slots, reason), 0)
            for topic, at in self._present(end)
        )

    def _present(self, end: Offset) -> list[tuple[str, Position]]:
        return [(topic, at) for topic, at in end.topics.items() if topic not in self.lost]

    def opened(self, topic: str) -> tuple[int, bytes] | None:
        """Return the maximum retries and creation time of a topic, or None if it was deleted."""
        query = self.query(topic)
        if not self._unless_gone(topic, query.slots, 0):
            return None
        return query.max_retries, query._context.identity

    def _lose(self, topic: str, error: TopicNotFound | TopicVanished) -> None:
        """Handle the deletion of a topic: continue without the topic, or raise an error."""
        if self._options.on_topic_loss == "fail":
            raise type(error)(gone(topic, error)) from error
        if topic not in self.lost:
            _log.warning("topic %r was deleted or lost; the query continues without it", topic)
        self.leave(topic)

    def leave(self, topic: str) -> None:
        """Stop reading a topic that was deleted."""
        self._ours.discard(topic)
        self.lost.add(topic)
        for numbers in (self._holding, self._settled, self._ended):
            numbers.pop(topic, None)
        self._queries.pop(topic, None)

    def release_ownership(self, beyond: Mapping[str, Numbers] | None = None) -> None:
        """Stop renewing the lease, so that another process can run the query immediately.

        The query keeps its messages. But RMQ releases the messages after the sequence numbers in
        `beyond`, because Spark has no offset for them.
        """
        self._stopped.set()
        if self._ours and self._renewer is not None:
            self._renewer.join(1.0)
            at = self._options.at
            with rmq.Client(at.url, prefix=at.prefix, retry_for=0, timeout=1.0) as client:
                for topic in list(self._ours):
                    query = self._query_as(client, topic, _MIN_OWNER_S)
                    try:
                        if beyond is not None and topic in beyond:
                            query.give_back(beyond[topic])
                        query.keep(())
                    except (Unavailable, OutcomeUnknown):
                        break  # Redis cannot be reached
                    except rmq.RMQError as error:
                        _log.debug("at the end of the query: %s", error)
        self._joint.close()
        self._client.close()


def gone(topic: str, error: TopicNotFound | TopicVanished) -> str:
    """Return the error text for a topic that was deleted. It may have been created again."""
    if isinstance(error, TopicVanished) and error.recreated:
        return (
            f"topic {topic!r} was deleted and created again, or Redis was flushed, and the former "
            "messages are gone. To read the new topic, restart the query; with "
            "onTopicLoss=continue no restart is needed"
        )
    return (
        f"topic {topic!r} is gone: it was deleted, or Redis was flushed or came back empty, and "
        "its messages are gone with it. To continue without it, restart with onTopicLoss=continue; "
        f"or create it again: rmq topic create {topic}"
    )
