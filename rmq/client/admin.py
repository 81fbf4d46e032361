"""Operate topics: list, change, delete, look, redrive, purge. Sync and async side by side."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Unpack

from rmq.client.query import value_of
from rmq.client.stage import check_text
from rmq.core.audit import Audited
from rmq.core.claim import Claimed
from rmq.core.codec import JSON
from rmq.core.ids import Id
from rmq.core.message import Message, QueueName
from rmq.core.replay_session import ReplaySessions
from rmq.core.settings import Settings, TopicSettings, check_changes
from rmq.core.topic_context import TopicContext
from rmq.core.validation import duration_ms
from rmq.protocol.commands import check_run
from rmq.protocol.flows import (
    audit as audit_flow,
    claim_admin,
    dead_letters,
    inspect,
    pages,
    query_admin,
    rollback,
    topic_admin,
)
from rmq.protocol.flows.dead_letters import Filter, Redriven
from rmq.protocol.flows.pages import Cursor, Page, Span
from rmq.protocol.flows.query_admin import HeldQuery, Sink
from rmq.protocol.flows.topic_admin import Deleted
from rmq.protocol.steps import Progress
from rmq.transport import AsyncTransport, Transport


class _AdminBase:
    def __init__(self, prefix: str, sessions: ReplaySessions) -> None:
        self._prefix = prefix
        self._sessions = sessions

    def _context(self, topic: str) -> TopicContext:
        return TopicContext(self._prefix, topic, JSON, self._sessions, {})


class Admin(_AdminBase):
    """Looks after the topics of a client. Every verb names its topic, which must exist."""

    def __init__(self, transport: Transport, prefix: str, sessions: ReplaySessions) -> None:
        super().__init__(prefix, sessions)
        self._transport = transport

    def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        return self._transport.run(topic_admin.topics(self._prefix))

    def settings(self, topic: str) -> Settings:
        """What a topic is set to. Raises TopicNotFound."""
        return self._transport.run(topic_admin.topic_settings(self._context(topic)))

    def topic_set(self, topic: str, **settings: Unpack[TopicSettings]) -> Settings:
        """Change settings of a topic that is there, while it is used; all that it has then.

        The scripts go by the new ones from then on, for messages that wait, too. Clients keep
        `default_priority`, `max_body`, `expires`, `durability` and `overflow`, and follow within
        30 s of use. A consumer or worker that runs keeps its `lease` until it is made anew.
        Programs that name another value when they open the topic get SettingsMismatch, so change
        them too.

        Args:
            topic: its name.
            settings: as for `Client.topic`. `slots` and `max_retries` cannot be changed.

        Guarantee:
            Stopped half-way, some slots have the old settings until this call is made again, or any
            program opens the topic. Two callers at a time: each setting is the later one's.

        Raises:
            InvalidValue, InvalidType: a setting cannot be changed, or not to this.
            TopicNotFound: there is no such topic.
        """
        asked = check_changes(settings)
        return self._transport.run(topic_admin.topic_set(self._context(topic), asked))

    def topic_delete(
        self,
        topic: str,
        *,
        force: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Deleted:
        """Delete a topic for good, with everything that belongs to it; what it held.

        Producers and consumers that have it open get TopicVanished. A topic of the same name is a
        new one to them, until they open it again.

        Args:
            topic: its name.
            force: also with its messages.
            dry_run: only count them.
            progress: called with (slots done, all slots) as it goes.

        Guarantee:
            Stopped half-way, nobody opens the topic any more; run it again. A slot goes whole or
            stays. Not forced, no message is deleted.

        Raises:
            TopicNotEmpty: it holds messages, and this is not forced; the topic stands.
            TopicNotFound: there is no such topic.
        """
        context = self._context(topic)
        return self._transport.run(topic_admin.topic_delete(context, force, dry_run, progress))

    def stats(self, topic: str) -> dict[str, int]:
        """What a topic holds and has done, over all slots; `lua/stats.lua` tells the names."""
        context = self._context(topic)
        return self._transport.run(inspect.stats(context))

    def stats_by_slot(self, topic: str) -> list[dict[str, int]]:
        """The same for each slot."""
        context = self._context(topic)
        return self._transport.run(inspect.stats_by_slot(context))

    def get(self, topic: str, id: Id) -> Message | None:
        """Look at one message, wherever it is."""
        context = self._context(topic)
        return self._transport.run(inspect.get(context, id))

    def peek(
        self, topic: str, limit: int = 10, place: QueueName = "store", slot: int | None = None
    ) -> list[Message]:
        """Look at messages without taking them.

        Args:
            topic: its name.
            limit: how many at most.
            place: "store" (in the order in which they would go), "prepare" or "dead" (oldest
                first).
            slot: only this one.
        """
        context = self._context(topic)
        return self._transport.run(inspect.peek(context, limit, place, slot))

    def spans(self, topic: str, place: QueueName, slot: int, pieces: int = 1) -> list[Span]:
        """A queue of a slot in parts of about the same size, for `page`; fewer where it is small.

        Args:
            topic: its name.
            place: "store", "prepare" or "dead".
            slot: its index.
            pieces: in how many parts, 1 to 10 000.
        """
        context = self._context(topic)
        return self._transport.run(pages.spans(context, place, slot, pieces))

    def page(
        self,
        topic: str,
        place: QueueName,
        span: Span,
        cursor: Cursor | None = None,
        *,
        raw: bool = False,
    ) -> Page:
        """The next messages of a part of a queue, up to 1000 and 16 MiB; takes nothing.

        Args:
            topic: its name.
            place: "store", "prepare" or "dead".
            span: one of those that `spans` gave.
            cursor: of the page before; None: from the beginning.
            raw: bodies as their producer's codec wrote them, instead of decoded.

        Guarantee:
            A message that stays where it is, is on one page. One that moves meanwhile may be seen
            twice or not at all.
        """
        context = self._context(topic)
        body = value_of if raw else None
        return self._transport.run(pages.page(context, place, span, cursor, body))

    def redrive(
        self,
        topic: str,
        *,
        ids: Sequence[Id] | None = None,
        reason: str | None = None,
        error: str | None = None,
        older_than: float | timedelta | None = None,
        dry_run: bool = False,
        rate: float | None = None,
        progress: Progress | None = None,
    ) -> Redriven:
        """Send dead letters back to be consumed again, with all their retries.

        Args:
            topic: its name.
            ids: only these.
            reason: only those that died so: failed, lease ran out, rejected, undecodable, expired.
            error: only those whose error this regular expression is found in.
            older_than: only those dead for so long, seconds or timedelta.
            dry_run: only count them.
            rate: at most so many a second.
            progress: called with (done, all) as it goes.

        Guarantee:
            A dead letter is in the DeadQueue or in the StoreQueue, never in both or neither.
            Stopped half-way, run it again: it goes on with what is still dead.
        """
        wanted = Filter(ids, reason, error, older_than)
        context = self._context(topic)
        return self._transport.run(dead_letters.redrive(context, wanted, dry_run, rate, progress))

    def purge(
        self,
        topic: str,
        place: QueueName,
        *,
        ids: Sequence[Id] | None = None,
        reason: str | None = None,
        error: str | None = None,
        older_than: float | timedelta | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> int:
        """Delete waiting messages ("store") or dead letters ("dead") for good; how many.

        The filters are those of `redrive`, for dead letters only. Messages in flight are not
        touched.
        """
        wanted = Filter(ids, reason, error, older_than)
        context = self._context(topic)
        return self._transport.run(dead_letters.purge(context, place, wanted, dry_run, progress))

    def audit(
        self,
        topic: str,
        *,
        older_than: float | timedelta = 60.0,
        forget: bool = False,
        progress: Progress | None = None,
    ) -> Audited:
        """Tell what was lost of the messages that producers with `rmq.Audit` have sent.

        Args:
            topic: its name.
            older_than: only what was told as accepted so long ago, seconds or timedelta.
            forget: account for what is missing, so that it is not reported again.
            progress: called with (messages looked at, messages there were) as it goes.

        Guarantee:
            What it reports is in no queue, and was neither settled nor removed by RMQ: producers,
            consumers and operators may go on meanwhile.
        """
        older_ms = duration_ms(older_than, "older_than", zero=True)
        context = self._context(topic)
        found = self._transport.run(audit_flow.audit(context, older_ms, forget, progress=progress))
        assert found is not None
        return found

    def claim(self, topic: str, key: str, *, consumer: str = "default") -> Claimed | None:
        """What stands in Redis for a business key (`rmq.Claims`); None: nothing.

        Args:
            topic: its name.
            key: as the handler's `key` gives it, as text.
            consumer: as the handler's `rmq.Claims` names it.
        """
        context = self._context(topic)
        return self._transport.run(claim_admin.claim(context, key, consumer))

    def unclaim(self, topic: str, key: str, *, consumer: str = "default") -> bool:
        """Forget a business key, whatever its state; whether there was anything to forget.

        The work of its next message is done, even where it was done before.
        """
        context = self._context(topic)
        return self._transport.run(claim_admin.unclaim(context, key, consumer))

    def queries(self, topic: str) -> list[HeldQuery]:
        """The queries that have a lease on a topic (`Topic.query`, Spark), and what each holds.

        The lease that ends first is first. At most 1000 of each slot are listed.
        """
        context = self._context(topic)
        return self._transport.run(query_admin.queries(context))

    def release_query(
        self, topic: str, run: str, *, force: bool = False, dry_run: bool = False
    ) -> int:
        """Give back at once all that a query holds; how many messages. It costs each a retry.

        For a query that never comes back. They wait as after any failure; one that has no retry
        left is a dead letter then. All leases that have run out go back too, as by `rollback`.

        Args:
            topic: its name.
            run: 32 hex digits, as `queries` tells them.
            force: also while a driver runs it. That one would replay a batch that is gone.
            dry_run: only count them.

        Guarantee:
            Stopped half-way, run it again. A driver that starts at this very moment, or later on
            the same checkpoint, finds that its batch is gone.

        Raises:
            QueryOwned: a driver runs it; nothing was done.
        """
        context = self._context(topic)
        return self._transport.run(
            query_admin.release_query(context, check_run(run), force, dry_run)
        )

    def sinks(self, topic: str, query: str | None = None) -> list[Sink]:
        """Which batches of which queries are published to a topic (`Topic.publish`, Spark).

        There is no index of these records: SCAN walks all keys of the database, 1000 in a call. It
        holds nobody up, and takes long where there are many millions. It asks one server, so on a
        Redis Cluster it would miss those of other nodes.

        Args:
            topic: its name.
            query: only this one, without the walk.
        """
        if query is not None:
            check_text(query, "query")
        context = self._context(topic)
        return self._transport.run(query_admin.sinks(context, query))

    def forget_sink(self, topic: str, query: str) -> bool:
        """Forget which batches of a query are published; whether there was anything to forget.

        For a query whose checkpoint is gone. On a checkpoint that lives, its last batch would be
        published a second time if it is replayed; and what a begun batch has not published yet is
        published only if its query runs it again.
        """
        check_text(query, "query")
        context = self._context(topic)
        return self._transport.run(query_admin.forget_sink(context, query))

    def rollback(self, topic: str) -> int:
        """Take back every lease that has run out; how many. Consumers do it as they take."""
        context = self._context(topic)
        return self._transport.run(rollback.rollback_topic(context))


class AsyncAdmin(_AdminBase):
    """Looks after the topics of an async client. The methods are those of `Admin`."""

    def __init__(self, transport: AsyncTransport, prefix: str, sessions: ReplaySessions) -> None:
        super().__init__(prefix, sessions)
        self._transport = transport

    async def topics(self) -> list[str]:
        """As `Admin.topics`."""
        return await self._transport.run(topic_admin.topics(self._prefix))

    async def settings(self, topic: str) -> Settings:
        """As `Admin.settings`."""
        return await self._transport.run(topic_admin.topic_settings(self._context(topic)))

    async def topic_set(self, topic: str, **settings: Unpack[TopicSettings]) -> Settings:
        """As `Admin.topic_set`."""
        asked = check_changes(settings)
        return await self._transport.run(topic_admin.topic_set(self._context(topic), asked))

    async def topic_delete(
        self,
        topic: str,
        *,
        force: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Deleted:
        """As `Admin.topic_delete`."""
        context = self._context(topic)
        return await self._transport.run(
            topic_admin.topic_delete(context, force, dry_run, progress)
        )

    async def stats(self, topic: str) -> dict[str, int]:
        """As `Admin.stats`."""
        context = self._context(topic)
        return await self._transport.run(inspect.stats(context))

    async def stats_by_slot(self, topic: str) -> list[dict[str, int]]:
        """As `Admin.stats_by_slot`."""
        context = self._context(topic)
        return await self._transport.run(inspect.stats_by_slot(context))

    async def get(self, topic: str, id: Id) -> Message | None:
        """As `Admin.get`."""
        context = self._context(topic)
        return await self._transport.run(inspect.get(context, id))

    async def peek(
        self, topic: str, limit: int = 10, place: QueueName = "store", slot: int | None = None
    ) -> list[Message]:
        """As `Admin.peek`."""
        context = self._context(topic)
        return await self._transport.run(inspect.peek(context, limit, place, slot))

    async def spans(self, topic: str, place: QueueName, slot: int, pieces: int = 1) -> list[Span]:
        """As `Admin.spans`."""
        context = self._context(topic)
        return await self._transport.run(pages.spans(context, place, slot, pieces))

    async def page(
        self,
        topic: str,
        place: QueueName,
        span: Span,
        cursor: Cursor | None = None,
        *,
        raw: bool = False,
    ) -> Page:
        """As `Admin.page`."""
        context = self._context(topic)
        body = value_of if raw else None
        return await self._transport.run(pages.page(context, place, span, cursor, body))

    async def redrive(
        self,
        topic: str,
        *,
        ids: Sequence[Id] | None = None,
        reason: str | None = None,
        error: str | None = None,
        older_than: float | timedelta | None = None,
        dry_run: bool = False,
        rate: float | None = None,
        progress: Progress | None = None,
    ) -> Redriven:
        """As `Admin.redrive`."""
        wanted = Filter(ids, reason, error, older_than)
        context = self._context(topic)
        return await self._transport.run(
            dead_letters.redrive(context, wanted, dry_run, rate, progress)
        )

    async def purge(
        self,
        topic: str,
        place: QueueName,
        *,
        ids: Sequence[Id] | None = None,
        reason: str | None = None,
        error: str | None = None,
        older_than: float | timedelta | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> int:
        """As `Admin.purge`."""
        wanted = Filter(ids, reason, error, older_than)
        context = self._context(topic)
        return await self._transport.run(
            dead_letters.purge(context, place, wanted, dry_run, progress)
        )

    async def audit(
        self,
        topic: str,
        *,
        older_than: float | timedelta = 60.0,
        forget: bool = False,
        progress: Progress | None = None,
    ) -> Audited:
        """As `Admin.audit`."""
        older_ms = duration_ms(older_than, "older_than", zero=True)
        context = self._context(topic)
        found = await self._transport.run(
            audit_flow.audit(context, older_ms, forget, progress=progress)
        )
        assert found is not None
        return found

    async def claim(self, topic: str, key: str, *, consumer: str = "default") -> Claimed | None:
        """As `Admin.claim`."""
        context = self._context(topic)
        return await self._transport.run(claim_admin.claim(context, key, consumer))

    async def unclaim(self, topic: str, key: str, *, consumer: str = "default") -> bool:
        """As `Admin.unclaim`."""
        context = self._context(topic)
        return await self._transport.run(claim_admin.unclaim(context, key, consumer))

    async def queries(self, topic: str) -> list[HeldQuery]:
        """As `Admin.queries`."""
        context = self._context(topic)
        return await self._transport.run(query_admin.queries(context))

    async def release_query(
        self, topic: str, run: str, *, force: bool = False, dry_run: bool = False
    ) -> int:
        """As `Admin.release_query`."""
        context = self._context(topic)
        return await self._transport.run(
            query_admin.release_query(context, check_run(run), force, dry_run)
        )

    async def sinks(self, topic: str, query: str | None = None) -> list[Sink]:
        """As `Admin.sinks`."""
        if query is not None:
            check_text(query, "query")
        context = self._context(topic)
        return await self._transport.run(query_admin.sinks(context, query))

    async def forget_sink(self, topic: str, query: str) -> bool:
        """As `Admin.forget_sink`."""
        check_text(query, "query")
        context = self._context(topic)
        return await self._transport.run(query_admin.forget_sink(context, query))

    async def rollback(self, topic: str) -> int:
        """As `Admin.rollback`."""
        context = self._context(topic)
        return await self._transport.run(rollback.rollback_topic(context))
