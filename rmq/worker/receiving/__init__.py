"""Receive deliveries for all topics of a worker.

fetcher    receives for all topics in one thread, and decides which topic is next
feed       receives from one topic, and gives the deliveries to the queues of handlers
claiming   claims the keys of received deliveries
"""
