"""Queries, stages and sinks: messages taken and sent in batches, exactly once, as Spark does."""
