# Generated from rmq/features/spark/admin.py: change that, then run `make fmt`.
"""The blocking classes of `rmq.features.spark.admin`."""

from __future__ import annotations

from rmq.features.spark import held
from rmq.features.spark.held import HeldQuery, Sink
from rmq.features.spark.stage import check_text
from rmq.kernel.consumer.scripts import check_run
from rmq.kernel.topic.admin_part import AdminPart


class QueryAdmin(AdminPart):
    """Lists the streaming queries of engines such as Spark, and releases their messages.

    Lists and deletes sinks.
    """

    def queries(self, topic: str) -> list[HeldQuery]:
        """Return the queries that have a lease on a topic (`Topic.query`, Spark).

        The query whose lease ends first is first. The list has at most 1000 queries of each slot
        (part) of the topic.
        """
        return self._run(held.queries(self._context(topic)))

    def release_query(
        self, topic: str, run: str, *, force: bool = False, dry_run: bool = False
    ) -> int:
        """Give all messages of a query back immediately. Return the number of messages.

        Use this method for a query that will not start again. Each message loses a retry and waits
        as after a failure. A message without a remaining retry becomes a dead letter. The call also
        rolls back all expired leases of the topic.

        Args:
            topic: Name of the topic.
            run: Name of the query, 32 hex digits, as `queries` returns it.
            force: Whether to release even if a driver (the main process of the engine) runs the
                query. The driver may then repeat a batch whose messages are gone.
            dry_run: Whether to only count the messages.

        Guarantee:
            If the call is interrupted, repeat it. If a driver starts at the same time, or later
            with the same checkpoint, it finds that the messages of its batch are gone.

        Raises:
            QueryOwned: A driver runs the query. No message was given back.
        """
        context = self._context(topic)
        return self._run(held.release_query(context, check_run(run), force, dry_run))

    def sinks(self, topic: str, query: str | None = None) -> list[Sink]:
        """Return the last batch that each query has published to a topic (`Topic.publish`, Spark).

        RMQ has no index of these records. So this method uses SCAN to read the names of all keys of
        the database, 1000 per call. The scan blocks no other client, but takes long with many
        millions of keys. In a Redis Cluster, the method scans one master after another. It may miss
        a key whose hash slot moves during the scan.

        Args:
            topic: Name of the topic.
            query: Name of a query, to return only the sink of this query. No scan is then needed.
        """
        if query is not None:
            check_text(query, "query")
        return self._run(held.sinks(self._context(topic), query))

    def forget_sink(self, topic: str, query: str) -> bool:
        """Delete the record of a query's published batches. Return whether there was a record.

        Use this method after you have deleted the checkpoint of the query. If the query continues
        with the checkpoint and repeats its last batch, RMQ publishes the batch a second time. If
        the publication of a batch was interrupted, RMQ publishes its rest only if the query runs
        the batch again.
        """
        check_text(query, "query")
        return self._run(held.forget_sink(self._context(topic), query))
