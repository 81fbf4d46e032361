"""`rmq worker`: run the handlers of a module in one or several processes.

With several processes, a supervisor restarts processes that die.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import rmq
from rmq.cli import worker_summary
from rmq.cli.worker_summary import WorkerReport
from rmq.cli_framework import loader, logs, output
from rmq.cli_framework.app import OK, USAGE, Command, CommandGroup, Failed
from rmq.cli_framework.options import CommonOptions, common_options
from rmq.cli_framework.param_types import DURATION, DURATION_OR_OFF, SIZE
from rmq.cli_framework.tables import Column
from rmq.features.workers.cli import list_workers, show, wanted
from rmq.kernel.core import packages, process
from rmq.kernel.handlers.handler import MAX_CONCURRENCY
from rmq.worker.supervisor.process import ControlChannel
from rmq.worker.supervisor.supervisor import Supervisor
from rmq.worker.worker import FINISHED, exit_after, exit_now

if TYPE_CHECKING:
    from rmq.worker.supervisor.probes import Probes


log = logging.getLogger("rmq")

MAX_PROCESSES = 256
LIMITS = ("max_messages", "max_memory", "timeout_kill")  # a supervisor replaces the process


def _host_port(ctx: click.Context, param: click.Parameter, value: str | None) -> Any:
    if value is None:
        return None
    host, _, port = value.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise click.BadParameter(f"{value!r} is no HOST:PORT, as 127.0.0.1:8080 or [::]:8080")
    return host.strip("[]") or "127.0.0.1", int(port)


HELP = """Run the handlers of MODULE until SIGTERM or Ctrl-C.

The command imports MODULE, with the current directory on Python's path. ATTR is the name of an
rmq.Client, an rmq.AsyncClient or an rmq.Worker in MODULE. You may omit ATTR if MODULE has only one
of these. The client decides which Redis and which prefix are used.

\b
Exit codes (with --processes, the largest exit code of the processes):
  0   stopped; everything that had started was finished
  1   MODULE cannot be imported
  2   wrong usage, or settings that differ from those in Redis
  4   the grace time ended, and running messages were released; or Redis
      was unavailable, and messages without an ack are delivered again
  70  the worker made no progress (--watchdog), or a handler hung
      (--timeout-kill)
  134 the same as 70, but the handler held the GIL; SIGABRT ended the process
  71  a lifespan raised at the start, before any message was received; or a
      lifespan raised or took too long at the end
  75  an rmq.Worker without a supervisor reached its max_messages or
      max_memory
  128 + n  a second signal n
"""


@click.command(
    "run",
    cls=Command,
    help=HELP,
    examples=(
        "rmq worker shop",
        "rmq worker shop.handlers:client --topic orders --topic mail",
        "rmq worker shop --processes 4 --max-memory 2G --health 0.0.0.0:8080 --log-json",
        "rmq worker shop --reload",
        "rmq worker shop --check",
    ),
)
@click.argument("module", metavar="MODULE[:ATTR]")
@click.option(
    "--topic", "topics", multiple=True, metavar="NAME", help="Only this topic; repeatable."
)
@click.option(
    "--processes",
    type=click.IntRange(1, MAX_PROCESSES),
    metavar="N",
    help="Number of worker processes; one that dies is restarted.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, MAX_CONCURRENCY),
    metavar="N",
    help="How many handlers run at the same time in a process.",
)
@click.option(
    "--max-messages",
    type=click.IntRange(1),
    envvar="RMQ_MAX_MESSAGES",
    metavar="N",
    help="Replace a process after N handled messages, and up to 10 % more.",
)
@click.option(
    "--max-memory",
    type=SIZE,
    envvar="RMQ_MAX_MEMORY",
    metavar="SIZE",
    help="Replace a process that uses more resident memory than SIZE.",
)
@click.option(
    "--timeout-kill",
    type=DURATION,
    envvar="RMQ_TIMEOUT_KILL",
    help="Replace a process if a handler hangs for this time beyond its max_runtime.",
)
@click.option("--reload", is_flag=True, help="Restart when a .py file changes.")
@click.option("--grace", type=DURATION, help="How long a stop waits for running handlers.  [30s]")
@click.option(
    "--watchdog", type=DURATION_OR_OFF, help="Exit after this time without progress.  [60s]"
)
@click.option(
    "--heartbeat",
    type=click.Choice(["process", "thread"]),
    help="Where leases are renewed.  [process]",
)
@click.option(
    "--no-schedules", is_flag=True, help="Leave schedules of the topics to other processes."
)
@click.option(
    "--health",
    callback=_host_port,
    metavar="[HOST]:PORT",
    help="Serve /livez, /readyz and /metrics over HTTP.  [host: 127.0.0.1]",
)
@logs.log_options
@click.option("--check", is_flag=True, help="Import, compare settings with Redis, exit.")
@click.option(
    "--control-fd",
    type=int,
    hidden=True,
    help="File descriptor of the supervisor's control channel.",
)
def run(
    module: str,
    topics: tuple[str, ...],
    processes: int | None,
    reload: bool,
    no_schedules: bool,
    health: tuple[str, int] | None,
    log_level: str | None,
    log_json: bool | None,
    check: bool,
    control_fd: int | None,
    **options: Any,
) -> int:
    """Run handlers in one or several processes, or only check the handlers."""
    common = common_options()
    _refuse_redis_options(common, module)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # for what handlers print
    given = {name: value for name, value in options.items() if value is not None}
    supervised = processes or reload or any(name in given for name in LIMITS)
    if supervised and not check and control_fd is None:
        logs.start(log_level, log_json)
        arguments = [f"{_option(name)}={value}" for name, value in given.items()]
        arguments += [f"--topic={name}" for name in topics] + ["--no-schedules"] * no_schedules
        arguments += [f"--log-level={log_level}"] * bool(log_level)
        arguments += ["--log-json"] * bool(log_json)
        arguments += ["--json"] * common.json
        return _supervise(common, [module, *arguments], processes or 1, reload, health)
    if no_schedules:
        given["schedules"] = False
    control = None if control_fd is None else ControlChannel(control_fd)
    new_worker = _make(module, topics, given)
    if check:
        return _check(common, new_worker)
    logs.start(log_level, log_json)
    if control is not None:
        return _serve_supervised(new_worker, control)
    return _serve(common, module, new_worker, health)


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _refuse_redis_options(common: CommonOptions, module: str) -> None:
    for option, given in (("--url", common.url), ("--prefix", common.prefix)):
        if given:
            raise Failed(
                f"{option}: a worker serves the client that {module} makes, with the client's own "
                "Redis and prefix; change it there (rmq.Client() without a URL reads RMQ_URL)",
                USAGE,
                "UsageError",
            )


def _make(module: str, topics: Sequence[str], worker_options: dict[str, Any]) -> rmq.Worker:
    target = loader.find(module)
    if isinstance(target, rmq.Worker):
        given_options = [_option(name) for name in ["topic"] * bool(topics) + list(worker_options)]
        if given_options:
            raise Failed(
                f"{', '.join(given_options)}: {module} names an rmq.Worker, which has its settings "
                "already; change them there, or name its client",
                USAGE,
                "UsageError",
            )
        return target
    if worker_options.get("watchdog") == 0:
        worker_options["watchdog"] = None
    return rmq.Worker(target, topics=topics or None, **worker_options)


# --- one process ---------------------------------------------------------------------------------


def _check(common: CommonOptions, new_worker: rmq.Worker) -> int:
    exists_by_topic = new_worker.check()
    handlers = [
        handler | {"exists": exists_by_topic[handler["topic"]]}
        for handler in worker_summary.handlers_of(new_worker)
    ]
    if common.json:
        output.document({"handlers": handlers})
    else:
        rows = [
            [*worker_summary.row(handler), "there" if handler["exists"] else "to be created"]
            for handler in handlers
        ]
        output.table([*worker_summary.COLUMNS, Column("IN-REDIS")], rows)
    return OK


def _serve_supervised(new_worker: rmq.Worker, control: ControlChannel) -> int:
    control.set_worker(new_worker)
    code = new_worker.run(
        lambda: control.report_ready(handlers=worker_summary.handlers_of(new_worker))
    )
    control.send(counts=new_worker.counts())
    return _exit_process(code)


def _serve(
    common: CommonOptions, module: str, new_worker: rmq.Worker, health: tuple[str, int] | None
) -> int:
    probes = _probes(health, new_worker.health)
    report = WorkerReport(common, module)
    code = new_worker.run(
        lambda: report.begin(worker_summary.handlers_of(new_worker), probes.url if probes else None)
    )
    report.end(code, new_worker.counts())
    return _exit_process(code)


def _exit_process(code: int) -> int:
    """Exit this process, even if it still has running threads.

    After exit code 0, no thread should be running, and Python exits as usual. After any other exit
    code, handlers may still run in threads. Python would wait forever for some of these threads,
    and crash on others.
    """
    exiting = threading.Event()
    exiting.set()
    exit_after(exiting, code)
    if code != FINISHED:
        atexit._run_exitfuncs()
        exit_now(code)
    return code


def _probes(address: tuple[str, int] | None, health: Callable[[], rmq.Health]) -> Probes | None:
    if address is None:
        return None
    from rmq.worker.supervisor.probes import (
        Probes,  # imports a web server, which only --health needs
    )

    try:
        return Probes(*address, health)
    except OSError as error:
        raise Failed(
            f"--health: {address[0]}:{address[1]}: {error.strerror or error}; give another one: "
            "--health [HOST]:PORT"
        ) from error


# --- several processes ---------------------------------------------------------------------------


def _supervise(
    common: CommonOptions,
    arguments: list[str],
    count: int,
    reload: bool,
    health: tuple[str, int] | None,
) -> int:
    if not process.FORKS:
        raise Failed(
            "--processes, --reload, --max-messages, --max-memory and --timeout-kill need a POSIX "
            "system",
            USAGE,
            "UsageError",
        )
    watchfiles = packages.load("watchfiles", "reload", "--reload") if reload else None
    report = WorkerReport(common, arguments[0], count)
    metrics = None
    if health is not None:
        from rmq.worker.supervisor.probes import SharedMetrics

        metrics = SharedMetrics()
    probes: Probes | None = None
    supervisor = Supervisor(
        [sys.executable, "-m", "rmq", "worker", "run", *arguments],
        count,
        env=_child_environment(),
        is_watched=reload,
        on_ready=lambda facts: report.begin(facts["handlers"], probes.url if probes else None),
        on_end=metrics.forget if metrics else lambda pid: None,
    )
    try:
        probes = _probes(health, supervisor.health)
        if watchfiles:
            threading.Thread(
                target=_watch, args=(supervisor, watchfiles), name="rmq-reload", daemon=True
            ).start()
        code = supervisor.run()
    finally:
        if metrics is not None:
            metrics.close()
    report.end(code, supervisor.counts(), supervisor.restarts, supervisor.recycled)
    return code


def _child_environment() -> dict[str, str]:
    """Return the environment of a child process. In a checkout, its PYTHONPATH leads to rmq."""
    home = Path(rmq.__file__).parents[1]
    if not (home / "pyproject.toml").is_file():
        return dict(os.environ)
    path = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": f"{home}{os.pathsep}{path}" if path else str(home)}


def _watch(supervisor: Supervisor, watchfiles: Any) -> None:
    cwd = os.getcwd()
    try:
        for changes in watchfiles.watch(
            cwd, watch_filter=watchfiles.PythonFilter(), raise_interrupt=False
        ):
            for kind, path in sorted(changes, key=lambda change: change[1]):
                word = {watchfiles.Change.added: "is new", watchfiles.Change.deleted: "is gone"}
                supervisor.changed(f"{os.path.relpath(path, cwd)} {word.get(kind, 'has changed')}")
    except Exception:
        log.exception("changes of the code are no longer watched")


# --- the group ------------------------------------------------------------------------------------

_WITH_VALUE = ("--url", "--prefix")  # common options whose value may be the next word


class _WorkerGroup(CommandGroup):
    """A group of commands that runs handlers if the user names no command.

    Its help text is the help text of `run`.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = iter(args)
        for word in words:
            if word in _WITH_VALUE:
                next(words, None)
            elif word in self.commands or (word in ("-h", "--help") and word == args[0]):
                return super().parse_args(ctx, args)
            elif word != "--json" and not word.startswith(tuple(f"{o}=" for o in _WITH_VALUE)):
                break
        return super().parse_args(ctx, ["run", *args])

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        run.format_help(ctx, formatter)
        self.format_commands(ctx, formatter)


worker = _WorkerGroup("worker", help="Run handlers, or list the processes that run them.")
worker.add_command(run)
worker.add_command(list_workers)
worker.add_command(show)
worker.add_command(wanted)
