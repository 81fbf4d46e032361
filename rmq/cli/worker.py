"""`rmq worker`: run the handlers of a module, in this process or in several that are watched."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

import rmq
from rmq.cli import loader, logs, output, worker_summary
from rmq.cli.app import OK, USAGE, Failed, Leaf, Session, session
from rmq.cli.output import Column
from rmq.cli.param_types import DURATION, DURATION_OR_OFF
from rmq.cli.worker_summary import Account
from rmq.core import optional_imports
from rmq.worker.control_channel import Line
from rmq.worker.supervisor import Supervisor
from rmq.worker.worker import FINISHED

if TYPE_CHECKING:
    from rmq.worker.probes import Probes

log = logging.getLogger("rmq")

LAST_CALL_S = 5.0  # for what runs at the exit of a process whose handlers still run
PROCESSES_MOST = 256


def _address(ctx: click.Context, param: click.Parameter, value: str | None) -> Any:
    """HOST:PORT; without a host, this machine alone."""
    if value is None:
        return None
    host, _, port = value.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise click.BadParameter(f"{value!r} is no HOST:PORT, as 127.0.0.1:8080 or [::]:8080")
    return host.strip("[]") or "127.0.0.1", int(port)


HELP = """Run the handlers of MODULE until SIGTERM or Ctrl-C.

MODULE is imported, with the current directory on Python's path. ATTR is an rmq.Client, an
rmq.AsyncClient or an rmq.Worker in it; without ATTR, the one there is. Redis and the prefix are
those of that client.

\b
Exit codes; with --processes the largest of them:
  0   stopped; everything that had started was finished
  1   MODULE cannot be imported
  2   wrong usage, or settings that differ from those in Redis
  4   the grace time ran out, and what was still running was handed back; or Redis was away, and
      was not told what was done: it is delivered again
  70  nothing moved any more (--watchdog)
  128 + n  a second signal n
"""


@click.command(
    cls=Leaf,
    help=HELP,
    examples=(
        "rmq worker shop",
        "rmq worker shop.handlers:client --topic orders --topic mail",
        "rmq worker shop --processes 4 --grace 1m --health 0.0.0.0:8080 --log-json",
        "rmq worker shop --reload",
        "rmq worker shop --check",
    ),
)
@click.argument("module", metavar="MODULE[:ATTR]")
@click.option("--topic", "topics", multiple=True, metavar="NAME", help="Only this; repeatable.")
@click.option(
    "--processes",
    type=click.IntRange(1, PROCESSES_MOST),
    metavar="N",
    help="Worker processes, started again when they die.",
)
@click.option("--reload", is_flag=True, help="Start again when a .py file changes.")
@click.option("--grace", type=DURATION, help="How long a stop waits for what runs.  [30s]")
@click.option("--watchdog", type=DURATION_OR_OFF, help="End when nothing moves so long.  [60s]")
@click.option(
    "--keeper",
    type=click.Choice(["process", "thread"]),
    help="Where leases are renewed.  [process]",
)
@click.option(
    "--health",
    callback=_address,
    metavar="[HOST]:PORT",
    help="Serve /livez, /readyz and /metrics over HTTP.  [host: 127.0.0.1]",
)
@click.option(
    "--log-level",
    type=click.Choice(logs.LEVELS),
    metavar="LEVEL",
    help="debug, info, warning or error.  [info]",
)
@click.option("--log-json", is_flag=True, help="Log in JSON, one object a line.")
@click.option("--check", is_flag=True, help="Import, compare settings with Redis, end.")
@click.option("--line", type=int, hidden=True, help="Where a supervisor listens.")
def worker(
    module: str,
    topics: tuple[str, ...],
    processes: int | None,
    reload: bool,
    grace: float | None,
    watchdog: float | None,
    keeper: Literal["process", "thread"] | None,
    health: tuple[str, int] | None,
    log_level: str | None,
    log_json: bool,
    check: bool,
    line: int | None,
) -> int:
    """Run handlers: here, in several processes, or only check them."""
    here = session()
    _refuse_address(here, module)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # what handlers print
    options = {"grace": grace, "watchdog": watchdog, "keeper": keeper}
    given = {name: value for name, value in options.items() if value is not None}
    if (processes or reload) and not check and line is None:
        logs.start(log_level, log_json)
        words = [f"--{name}={value}" for name, value in given.items()]
        words += [f"--topic={name}" for name in topics]
        words += [f"--log-level={log_level}"] * bool(log_level) + ["--log-json"] * log_json
        words += ["--json"] * here.json
        return _supervise(here, [module, *words], processes or 1, reload, health)
    supervisor = None if line is None else Line(line)
    made = _make(module, topics, given)
    if check:
        return _check(here, made)
    logs.start(log_level, log_json)
    if supervisor is not None:
        return _serve_line(made, supervisor)
    return _serve(here, module, made, health)


def _refuse_address(here: Session, module: str) -> None:
    for option, given in (("--url", here.url), ("--prefix", here.prefix)):
        if given:
            raise Failed(
                f"{option}: a worker serves the client that {module} makes, with the client's own "
                "Redis and prefix; change it there (rmq.Client() without a URL reads RMQ_URL)",
                USAGE,
                "UsageError",
            )


def _make(module: str, topics: Sequence[str], options: dict[str, Any]) -> rmq.Worker:
    found = loader.find(module)
    if isinstance(found, rmq.Worker):
        given = [f"--{name}" for name in (["topic"] * bool(topics) + list(options))]
        if given:
            raise Failed(
                f"{', '.join(given)}: {module} names an rmq.Worker, which has its settings "
                "already; change them there, or name its client",
                USAGE,
                "UsageError",
            )
        return found
    if options.get("watchdog") == 0:
        options["watchdog"] = None
    return rmq.Worker(found, topics=topics or None, **options)


# --- one process ---------------------------------------------------------------------------------


def _check(here: Session, made: rmq.Worker) -> int:
    found = made.check()
    listed = [one | {"exists": found[one["topic"]]} for one in worker_summary.handlers_of(made)]
    if here.json:
        output.document({"handlers": listed})
    else:
        rows = [
            [*worker_summary.row(one), "there" if one["exists"] else "to be created"]
            for one in listed
        ]
        output.table([*worker_summary.COLUMNS, Column("IN-REDIS")], rows)
    return OK


def _serve_line(made: rmq.Worker, line: Line) -> int:
    """Work under a supervisor."""
    line.serves(made)
    code = made.run(lambda: line.at_work(handlers=worker_summary.handlers_of(made)))
    line.say(counts=made.counts())
    return _leave(code)


def _serve(here: Session, module: str, made: rmq.Worker, health: tuple[str, int] | None) -> int:
    probes = _probes(health, made.health)
    told = Account(here, module)
    code = made.run(
        lambda: told.begin(worker_summary.handlers_of(made), probes.url if probes else None)
    )
    told.end(code, made.counts())
    return _leave(code)


def _leave(code: int) -> int:
    """End this process, whatever still runs in it.

    After the exit code 0 nothing should, and Python ends as it does. Else threads may be running
    handlers: Python would wait for some of them for ever, and crash on others.
    """
    threading.Thread(target=_last_call, args=(code,), name="rmq-leave", daemon=True).start()
    if code == FINISHED:
        return code
    atexit._run_exitfuncs()
    _flush()
    os._exit(code)


def _last_call(code: int) -> None:
    time.sleep(LAST_CALL_S)
    rest = [
        one.name for one in threading.enumerate() if not one.daemon and one.name != "MainThread"
    ]
    if code == FINISHED and rest:
        log.warning("ended although threads of yours still run: %s", ", ".join(rest))
    _flush()
    os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _probes(address: tuple[str, int] | None, health: Callable[[], rmq.Health]) -> Probes | None:
    if address is None:
        return None
    from rmq.worker.probes import Probes  # and with it a web server, which only this needs

    try:
        return Probes(*address, health)
    except OSError as error:
        raise Failed(f"--health: {address[0]}:{address[1]}: {error.strerror or error}") from error


# --- several processes ---------------------------------------------------------------------------


def _supervise(
    here: Session, words: list[str], count: int, reload: bool, health: tuple[str, int] | None
) -> int:
    if os.name != "posix":
        raise Failed("--processes and --reload need a POSIX system", USAGE, "UsageError")
    watchfiles = optional_imports.load("watchfiles", "reload", "--reload") if reload else None
    told = Account(here, words[0], count)
    metrics = None
    if health is not None:
        from rmq.worker.probes import SharedMetrics

        metrics = SharedMetrics()
    probes: Probes | None = None
    made = Supervisor(
        [sys.executable, "-m", "rmq", "worker", *words],
        count,
        env=_environment(),
        is_watched=reload,
        on_ready=lambda facts: told.begin(facts["handlers"], probes.url if probes else None),
        on_end=metrics.forget if metrics else lambda pid: None,
    )
    try:
        probes = _probes(health, made.health)
        if watchfiles:
            threading.Thread(
                target=_watch, args=(made, watchfiles), name="rmq-reload", daemon=True
            ).start()
        code = made.run()
    finally:
        if metrics is not None:
            metrics.close()
    told.end(code, made.counts(), made.restarts)
    return code


def _environment() -> dict[str, str]:
    """Ours; in a checkout that is not installed, a process must find rmq as well."""
    home = Path(rmq.__file__).parents[1]
    if not (home / "pyproject.toml").is_file():
        return dict(os.environ)
    path = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": f"{home}{os.pathsep}{path}" if path else str(home)}


def _watch(made: Supervisor, watchfiles: Any) -> None:
    """Tell the supervisor of every change of a .py file below the current directory."""
    here = os.getcwd()
    try:
        for changes in watchfiles.watch(
            here, watch_filter=watchfiles.PythonFilter(), raise_interrupt=False
        ):
            for kind, path in sorted(changes, key=lambda one: one[1]):
                word = {watchfiles.Change.added: "is new", watchfiles.Change.deleted: "is gone"}
                made.changed(f"{os.path.relpath(path, here)} {word.get(kind, 'has changed')}")
    except Exception:
        log.exception("changes of the code are not noticed any more")
