"""Receive the messages of all topics of a worker.

fetcher    receives messages in one thread, and decides which topic is next
feed       receives the messages of one topic, and gives them to the queues of handlers
claiming   claims the business keys of received deliveries
"""
