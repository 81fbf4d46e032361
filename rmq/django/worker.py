"""The tasks of a backend, for `rmq worker` with all its options.

    rmq worker rmq.django.worker:default --processes 4 --max-memory 2G

The name after the colon is the alias of the backend in TASKS. The environment variable
DJANGO_SETTINGS_MODULE names Django's settings. If the backend has an outbox, the first process also
runs a relay.
"""

import json
import os
from collections.abc import Iterator
from threading import Event, Thread

import django

import rmq

django.setup()

OPTIONS = (
    "RMQ_DJANGO_WORKER"  # environment variable with options of `manage.py rmq_worker`, as JSON
)


def __getattr__(alias: str) -> rmq.Client:
    """Return the client of a backend. The client has the handlers of the backend's queues."""
    from rmq.integrations.django.backend import TaskBackend
    from rmq.integrations.django.tasks_api import task_backends

    backend = None if alias.startswith("__") else task_backends[alias]
    if not isinstance(backend, TaskBackend):
        raise AttributeError(alias)
    options = json.loads(os.environ.get(OPTIONS, "{}"))
    client = backend.register(options.get("queues"), options.get("concurrency"))
    is_first = os.environ.get("RMQ_PROCESS_NUMBER", "1") == "1"
    if backend.outbox is not None and options.get("relay", True) and is_first:

        @client.lifespan
        def relay() -> Iterator[None]:
            stop = Event()
            thread = Thread(target=backend.relay().run, args=(stop,), daemon=True)
            thread.start()
            yield
            stop.set()

    return client
