"""Run Celery on RMQ: ETA in Redis, strict priorities, no visibility timeout, Redis Cluster.

    import rmq.celery
    from celery import Celery

    app = Celery("shop", broker="rmq://localhost:6379/0")

The import registers the schemes rmq://, rmqs://, rmq+sentinel:// and rmq+cluster://. If a program
cannot import this module first, set `broker_transport = "rmq.celery:Transport"`. docs/celery.md has
the options.
"""

from kombu.transport import TRANSPORT_ALIASES

from rmq.integrations.celery.transport import Transport

__all__ = ["Transport"]

TRANSPORT_ALIASES.update(dict.fromkeys(("rmq", "rmqs"), "rmq.celery:Transport"))
