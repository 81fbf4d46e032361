"""Receive deliveries for all topics of a worker.

fetcher    a thread that receives for all topics, and the order of topics
feed       one topic: its deliveries on their way to the queues of handlers
claiming   claim the keys of received deliveries, for handlers with claims
trickle    messages that arrive a few at a time
"""
