"""List and release queries. List and delete sinks."""

from __future__ import annotations

from rmq.features.spark import held
from rmq.features.spark.held import HeldQuery, Sink
from rmq.features.spark.stage import check_text
from rmq.kernel.consumer.scripts import check_run
from rmq.kernel.topic.admin_part import AsyncAdminPart


class AsyncQueryAdmin(AsyncAdminPart):
    """Operations on queries and sinks."""

    async def queries(self, topic: str) -> list[HeldQuery]:
        """Return the queries that have a lease on a topic (`Topic.query`, Spark).

        Queries are sorted by the end of their leases. At most 1000 queries of a slot are listed.
        """
        return await self._run(held.queries(self._context(topic)))

    async def release_query(
        self, topic: str, run: str, *, force: bool = False, dry_run: bool = False
    ) -> int:
        """Give all messages of a query back immediately. Return the number of messages.

        Use this method for a query that will not start again. Each message loses a retry and waits
        as after a failure. A message without a remaining retry becomes a dead letter. All expired
        leases of the topic are rolled back as well.

        Args:
            topic: Name of the topic.
            run: Name of the query, 32 hex digits, from `queries`.
            force: Whether to release even if a driver runs the query. The driver may then repeat a
                batch whose messages are gone.
            dry_run: Whether to only count the messages.

        Guarantee:
            If the call is interrupted, run it again. A driver that starts at the same moment, or
            later with the same checkpoint, finds that the messages of its batch are gone.

        Raises:
            QueryOwned: A driver runs the query. No message was given back.
        """
        context = self._context(topic)
        return await self._run(held.release_query(context, check_run(run), force, dry_run))

    async def sinks(self, topic: str, query: str | None = None) -> list[Sink]:
        """Return the last batch that each query has published to a topic (`Topic.publish`, Spark).

        These records have no index, so SCAN reads the names of all keys of the database, 1000 per
        call. The scan blocks no other client, but takes long with many millions of keys. In a Redis
        Cluster, masters are scanned one after another, and a key whose hash slot moves during the
        scan may be missed.

        Args:
            topic: Name of the topic.
            query: Name of a query, to return only the sink of this query. No scan is then needed.
        """
        if query is not None:
            check_text(query, "query")
        return await self._run(held.sinks(self._context(topic), query))

    async def forget_sink(self, topic: str, query: str) -> bool:
        """Delete the record of a query's published batches. Return whether there was a record.

        Use this method for a query whose checkpoint is deleted. If the checkpoint is still in use
        and the query repeats its last batch, the batch is published a second time. If the
        publication of a batch was interrupted, the rest of the batch is published only if the query
        runs the batch again.
        """
        check_text(query, "query")
        return await self._run(held.forget_sink(self._context(topic), query))
