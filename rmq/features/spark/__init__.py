"""Queries, stages and sinks, with which Spark receives and sends each message exactly once."""
