"""Celery and kombu on RMQ.

`rmq.celery` has the public names. docs/celery.md is the page for users.

transport     the connection: its URL, its topics, and the event loop that it wakes
channel       queues, exchanges and bindings
inbox         threads that receive messages and renew leases
envelope      converts messages between kombu and RMQ
"""
