"""Queries that hold messages, and sinks that queries publish to."""

from __future__ import annotations

from rmq.features.queries import held
from rmq.features.queries.held import HeldQuery, Sink
from rmq.features.queries.stage import check_text
from rmq.kernel.consumer.scripts import check_run
from rmq.kernel.topic.verbs import AsyncAdminPart


class AsyncQueryAdmin(AsyncAdminPart):
    """Verbs on queries and sinks."""

    async def queries(self, topic: str) -> list[HeldQuery]:
        """Return the queries that have a lease on a topic (`Topic.query`, Spark).

        The lease that ends first is first. At most 1000 of each slot are listed.
        """
        return await self._run(held.queries(self._context(topic)))

    async def release_query(
        self, topic: str, run: str, *, force: bool = False, dry_run: bool = False
    ) -> int:
        """Give back at once all messages of a query; return how many. It costs each a retry.

        For a query that is not started again. They wait as after a failure; one without a retry
        left becomes a dead letter. All expired leases go back too, as by `rollback`.

        Args:
            topic: its name.
            run: 32 hex digits, as `queries` lists them.
            force: also while a driver runs it, which would then replay a batch that is gone.
            dry_run: only count them.

        Guarantee:
            Stopped half-way, run it again. A driver that starts at this very moment, or later on
            the same checkpoint, finds that its batch is gone.

        Raises:
            QueryOwned: a driver runs it; nothing was done.
        """
        context = self._context(topic)
        return await self._run(held.release_query(context, check_run(run), force, dry_run))

    async def sinks(self, topic: str, query: str | None = None) -> list[Sink]:
        """Return the last batch that each query has published to a topic (`Topic.publish`, Spark).

        There is no index of these records: SCAN walks all keys of the database, 1000 in a call. It
        blocks nobody, and takes long if there are many millions. On a Redis Cluster it walks the
        masters one after the other, and may miss a key whose hash slot moves meanwhile.

        Args:
            topic: its name.
            query: only this one, without the walk.
        """
        if query is not None:
            check_text(query, "query")
        return await self._run(held.sinks(self._context(topic), query))

    async def forget_sink(self, topic: str, query: str) -> bool:
        """Forget which batches of a query are published; return whether anything was known.

        For a query whose checkpoint is gone. While a checkpoint is still used, its last batch would
        be published a second time if it is replayed, and messages of a begun batch that are not yet
        published would be published only if the query runs that batch again.
        """
        check_text(query, "query")
        return await self._run(held.forget_sink(self._context(topic), query))
