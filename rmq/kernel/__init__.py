"""Implement the path of a message from sender to handler, without any feature around it.

core        values and rules
transport   all calls of Redis; no other package imports `redis`
topic       settings, slots and sessions of a topic, and its queues as an operator reads them
delivery    a delivery: its data, its claim, and the verbs that settle it
producer    send
consumer    receive, settle, release
handlers    functions that are registered for messages
"""
