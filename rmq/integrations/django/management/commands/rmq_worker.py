"""The command `manage.py rmq_worker`. It runs tasks until SIGTERM or Ctrl-C."""

from __future__ import annotations

import io
import json
import os
import sys
from argparse import ArgumentParser, BooleanOptionalAction
from contextlib import suppress
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, NoReturn

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.utils import autoreload

import rmq
from rmq.integrations.django.backend import TaskBackend
from rmq.integrations.django.tasks_api import task_backends

if TYPE_CHECKING:
    from rmq.outbox import Relay

RELOAD_GRACE_S = 5.0  # how long a change of the code waits for running tasks


class Command(BaseCommand):
    """Runs the tasks of a backend."""

    help = "Run the tasks of a backend until SIGTERM or Ctrl-C."
    _reloaded: rmq.Worker | None = None

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options of the command."""
        parser.add_argument("--backend", default="default", help="Alias in TASKS.  [default]")
        parser.add_argument(
            "--queue", action="append", default=[], dest="queues", metavar="NAME",
            help="Only this queue; repeatable.  [the backend's QUEUES]",
        )  # fmt: skip
        parser.add_argument(
            "--concurrency", type=int, metavar="N",
            help="How many tasks of a queue run at a time, each in a thread.  [8]",
        )  # fmt: skip
        parser.add_argument(
            "--processes", type=int, metavar="N",
            help="Number of worker processes; one that dies is restarted.  [this process]",
        )  # fmt: skip
        parser.add_argument(
            "--grace", type=float, default=30.0, metavar="S",
            help="How long a stop waits for running tasks, in seconds.  [30]",
        )  # fmt: skip
        parser.add_argument(
            "--reload", action=BooleanOptionalAction,
            help="Restart when the code changes.  [in DEBUG, without --processes]",
        )  # fmt: skip
        parser.add_argument(
            "--no-relay", action="store_false", dest="relay",
            help="Leave the tasks of committed transactions to rmq_relay or to other workers.",
        )  # fmt: skip

    def handle(self, *, reload: bool | None, processes: int | None, **options: Any) -> None:
        """Run the worker, and exit with the exit code of `rmq worker`."""
        if processes is not None:
            if reload:
                raise CommandError("--reload and --processes: give one of them")
            self._run_processes(processes, **options)
        if reload is None:
            reload = settings.DEBUG
        if isinstance(sys.stdout, io.TextIOWrapper):  # tasks may print
            sys.stdout.reconfigure(line_buffering=True)
        if reload:
            try:
                autoreload.run_with_reloader(self._run_reloaded, **options)
            finally:  # after Ctrl-C or SIGTERM; the parent of the reloaded process has no worker
                if self._reloaded is not None:
                    self._reloaded.stop(RELOAD_GRACE_S)
        else:
            sys.exit(self._worker(**options).run(self._tell))

    def _run_reloaded(self, **options: Any) -> None:
        autoreload.raise_last_exception()
        worker = self._reloaded = self._worker(**options)

        def stop(**_: Any) -> None:
            worker.stop(RELOAD_GRACE_S)

        autoreload.file_changed.connect(stop, weak=False)
        worker.run(self._tell)

    def _tell(self) -> None:
        self.stdout.write("rmq_worker: running tasks; stop it with Ctrl-C")

    def _run_processes(
        self,
        processes: int,
        backend: str,
        queues: list[str],
        concurrency: int | None,
        grace: float,
        relay: bool,
        **_: Any,
    ) -> NoReturn:
        """Replace this process by `rmq worker`, which starts and restarts several processes."""
        self._backend(backend, queues)
        options = {"queues": queues or None, "concurrency": concurrency, "relay": relay}
        path = [sys.path[0], *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {"RMQ_DJANGO_WORKER": json.dumps(options), "PYTHONPATH": os.pathsep.join(path)}
        words = ["-m", "rmq", "worker", f"rmq.django.worker:{backend}"]
        words += [f"--processes={processes}", f"--grace={grace}s"]
        os.execve(sys.executable, [sys.executable, *words], os.environ | env)

    def _backend(self, alias: str, queues: list[str]) -> TaskBackend:
        backend = task_backends[alias]
        if not isinstance(backend, TaskBackend):
            raise CommandError(f"TASKS[{alias!r}] is not rmq.django.TaskBackend")
        if not queues and not backend.queues:
            raise CommandError(f"TASKS[{alias!r}] has no QUEUES; give --queue")
        return backend

    def _worker(
        self,
        backend: str,
        queues: list[str],
        concurrency: int | None,
        grace: float,
        relay: bool,
        **_: Any,
    ) -> rmq.Worker:
        tasks = self._backend(backend, queues)
        try:
            client = tasks.register(queues or None, concurrency)
            if relay and tasks.outbox is not None:
                self._start_relay(tasks.relay())
            return rmq.Worker(client, grace=grace)
        except rmq.RMQError as error:
            raise CommandError(str(error)) from error

    def _start_relay(self, relay: Relay) -> None:
        """Start a relay in a thread.

        The thread ends with the process, because a relay may be killed at any time.

        Raises:
            ConfigurationError: The tables are missing.
        """
        from sqlalchemy.exc import SQLAlchemyError  # a worker without an outbox does not need it

        with suppress(SQLAlchemyError, rmq.StorageError):  # away just now; the thread tries again
            relay.run_once()
        Thread(target=relay.run, args=(Event(),), name="rmq-relay", daemon=True).start()
