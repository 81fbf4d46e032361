"""Celery and kombu on RMQ; `rmq.celery` has the public names. docs/celery.md is for users.

transport     the connection: its URL, its topics, and the event loop that it wakes
channel       queues, exchanges and bindings
inbox         threads that receive, and renew leases
envelope      messages of kombu in messages of topics
"""
