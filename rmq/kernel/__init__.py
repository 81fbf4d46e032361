"""Carry a message from its sender to its handler. RMQ's features are built on this package.

core        values and rules
transport   the connections to Redis; no other package imports `redis`
topic       settings, slots and sessions of a topic, and its queues as an operator reads them
delivery    a delivery: its data, its claim, and the methods that settle it
producer    sends messages
consumer    receives, settles and releases messages
handlers    functions that are registered for messages
"""
