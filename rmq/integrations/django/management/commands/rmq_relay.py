"""The command `manage.py rmq_relay`.

It sends the tasks of committed transactions until SIGTERM or Ctrl-C.
"""

from __future__ import annotations

import signal
import threading
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from rmq.integrations.django.backend import TaskBackend
from rmq.integrations.django.tasks_api import task_backends


class Command(BaseCommand):
    """Sends the rows of the outbox of a backend."""

    help = "Send the tasks that were enqueued inside of atomic(), until SIGTERM or Ctrl-C."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options of the command."""
        parser.add_argument("--backend", default="default", help="Alias in TASKS.  [default]")
        parser.add_argument("--once", action="store_true", help="Send what is there, and exit.")

    def handle(self, *, backend: str, once: bool, **_: Any) -> None:
        """Run the relay."""
        tasks = task_backends[backend]
        if not isinstance(tasks, TaskBackend) or tasks.outbox is None:
            raise CommandError(
                f"TASKS[{backend!r}] has no option 'outbox' of rmq.django.TaskBackend"
            )
        relay = tasks.relay()
        if once:
            while relay.run_once():
                pass
            return
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        self.stdout.write("rmq_relay: sending tasks; stop it with Ctrl-C")
        self.stdout.flush()
        relay.run(stop)
