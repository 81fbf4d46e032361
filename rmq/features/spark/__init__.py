"""Queries, stages and sinks, with which Spark receives and sends each message exactly once.

A query is a reader that gets a batch of messages again until it settles the batch. A stage stores
messages that RMQ publishes together. A sink records which batches of a query were published.
"""
