"""Pending follow-ups of a topic: list, send and drop them.

A follow-up is a message that the ack of another message stores. It is pending until RMQ has stored
it in its own topic.
"""
