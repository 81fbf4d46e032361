"""An app of Celery whose tasks note when they run."""

from __future__ import annotations

import os
import time
from typing import Any

import redis
from celery import Celery
from celery.signals import worker_ready
from redis.backoff import ConstantBackoff
from redis.retry import Retry

import rmq.celery  # registers the URLs

assert rmq.celery.Transport.driver_name == "rmq"


def make(url: str, name: str, lease: float = 30.0, broker: str = "") -> Celery:
    """Make the app on one queue."""
    app = Celery(
        name,
        broker=(broker or url).replace("redis", "rmq", 1),
        broker_transport_options={"lease": lease, "topic_prefix": f"{name}.", "retry_for": 5},
        task_ignore_result=True,
        worker_prefetch_multiplier=4,
        broker_connection_retry_on_startup=True,
        worker_hijack_root_logger=False,
    )

    def connect() -> redis.Redis:
        """A client that waits for a server which is started again."""
        retry = Retry(ConstantBackoff(0.2), 100)
        return redis.Redis.from_url(url, retry=retry, retry_on_error=[redis.ConnectionError])

    def note(*words: Any) -> None:
        with connect() as raw:
            raw.rpush(f"{name}:notes", " ".join(map(str, (*words, time.time(), os.getpid()))))

    @app.task(name="shop.note", shared=False)
    def at(number: int, due: float = 0.0) -> None:
        note("ran", number, due)

    @app.task(name="shop.work", shared=False, acks_late=True)
    def work(number: int, seconds: float) -> None:
        with connect() as raw:
            is_first = raw.incr(f"{name}:runs:{number}") == 1
        note("began", number)
        time.sleep(seconds if is_first else 0)
        note("ended", number)

    @app.task(name="shop.again", shared=False, bind=True, max_retries=3)
    def again(self: Any, number: int) -> None:
        note("ran", number, self.request.retries)
        if self.request.retries < 2:
            raise self.retry(countdown=1)

    @worker_ready.connect(weak=False)
    def ready(**_: Any) -> None:
        with redis.Redis.from_url(url) as raw:
            raw.set(f"{name}:ready:{os.getpid()}", 1)

    return app


if "SHOP_URL" in os.environ:
    app = make(
        os.environ["SHOP_URL"],
        os.environ["SHOP_NAME"],
        float(os.environ["SHOP_LEASE"]),
        os.environ.get("SHOP_BROKER", ""),
    )
