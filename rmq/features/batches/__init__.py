"""Batches: RMQ sends one message, the callback, when all messages of a batch have ended."""
