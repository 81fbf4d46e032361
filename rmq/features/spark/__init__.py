"""Queries, stages and sinks, for Spark: receive and send messages in batches, exactly once."""
