"""Pending follow-ups of a topic: list, send and drop them.

When RMQ acks a message, it also stores the follow-ups of the message. A follow-up is pending until
RMQ has stored it in its own topic.
"""
