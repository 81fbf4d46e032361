"""Queries, stages and sinks: messages received and sent in batches, exactly once, as in Spark."""
