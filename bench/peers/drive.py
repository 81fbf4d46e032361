"""Run a peer once, with worker and producer in separate processes, under a time limit."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import redis
import sqlalchemy as sa

from bench.child import ROOT
from bench.machine import settle
from bench.peers.catalogue import NODE, Peer
from bench.peers.environments import Skipped, home, interpreter, reason
from tests.databases import Postgres
from tests.servers import Server, die_with_parent

LIMIT_S = 120  # for each of filling, handling and sending
STOP_S = 2  # time from SIGTERM to SIGKILL
ACKED_S = 5  # time from the last handled message to the last ack


@dataclass(frozen=True)
class Run:
    """The run of one worker over `count` messages.

    Attributes:
        rate: Messages/s; drain: from first to last handled; one: from the first send.
        cpu_us: CPU time of the worker's process, per message.
        late_ms: Lateness of each message, in the parts "paced" and "due".
        acked_ms: Time from the last handled message until all messages were acked.
        sent_rate: Messages/s of the producer alone, in the part "one".
    """

    count: int
    rate: float
    cpu_us: float
    late_ms: tuple[float, ...]
    acked_ms: float
    sent_rate: float | None


class Database:
    """A PostgreSQL of the bench, which writes each commit to disk before it answers."""

    def __init__(self) -> None:
        self._server = Postgres(durable=True)
        self._engine = sa.create_engine(
            self._server.url(), isolation_level="AUTOCOMMIT", pool_pre_ping=True
        )
        self.url = self._server.url().replace("+psycopg", "")

    def empty(self) -> None:
        """Drop everything that a peer has created."""
        self._server.empty(self._server.main)

    def count(self, table: str) -> int:
        """Return the number of rows of a table; the name may be followed by a condition."""
        with self._engine.connect() as connection:
            return int(connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar_one())

    def version(self) -> str:
        """Return the version of the server."""
        with self._engine.connect() as connection:
            return str(connection.exec_driver_sql("SHOW server_version").scalar_one()).split()[0]

    def stop(self) -> None:
        """End the server and remove its files."""
        self._engine.dispose()
        self._server.stop()


class Child:
    """A process that leads a process group; its output goes to a file."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in stop()
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=self.log,
            stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=die_with_parent,
        )  # fmt: skip

    def error(self) -> str:
        """Return the output line with the reason why it ended."""
        self.log.seek(0)
        return reason(self.log.read())

    def stop(self) -> None:
        """Stop the process group; kill it if it does not end in time."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_S)
        self.log.close()


@contextlib.contextmanager
def running(command: list[str], env: dict[str, str]) -> Iterator[Child]:
    """Run a child until the end of the block."""
    child = Child(command, env)
    try:
        yield child
    finally:
        child.stop()


def _environment(
    server: Server, database: Database | None, peer: Peer, part: str, count: int
) -> dict[str, str]:
    own = {
        "URL": server.url, "PART": part, "MESSAGES": str(count), "HOME": str(home(peer)),
        "DATABASE": database.url if database else "", **peer.options,
    }  # fmt: skip
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, "PYTHONPATH": str(ROOT), **{"RMQ_PEERS_" + k: v for k, v in own.items()}}


def _wait_for(raw: redis.Redis, key: str, children: list[Child]) -> dict[str, Any]:
    """Wait until a child pushes to a list; the first child is the worker.

    Raises:
        Skipped: A child ended early, or the time is up.
    """
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        popped = raw.blpop([key], timeout=1)
        if popped:
            return dict(json.loads(popped[1]))
        for child in children:
            code = child.process.poll()
            if code or (code == 0 and child is children[0]):  # a producer may have finished
                raise Skipped(f"ended with {code}: {child.error()}")
    raise Skipped(f"not done after {LIMIT_S} s; killed")


def _acked_ms(raw: redis.Redis, database: Database | None, peer: Peer, ended_ns: int) -> float:
    """Wait until all messages are acked; return the time since the last was handled, ms."""

    def unsettled() -> int:
        if database and peer.table:
            return database.count(peer.table)
        return int(peer.unsettled(raw)) if peer.unsettled else 0

    until = time.monotonic() + ACKED_S
    while left := unsettled():
        if time.monotonic() > until:
            raise Skipped(f"{left} messages not acked {ACKED_S} s after the last was handled")
        time.sleep(0.002)
    return (time.monotonic_ns() - ended_ns) / 1e6


def _end(child: Child, what: str) -> None:
    """Wait until a child has finished."""
    try:
        code = child.process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        raise Skipped(f"{what} took longer than {LIMIT_S} s; killed") from None
    if code:
        raise Skipped(child.error())


def run(server: Server, database: Database | None, peer: Peer, part: str, count: int) -> Run:
    """Measure a part once on an empty server."""
    env = _environment(server, database, peer, part, count)
    worker = [interpreter(peer), *(word.replace("{url}", server.url) for word in peer.worker)]
    producer = [interpreter(peer), "-m", "bench.peers.produce", peer.module]
    if peer.kind == NODE:
        producer = [interpreter(peer), peer.worker[0], "produce"]
    with server.raw(socket_timeout=10) as raw:
        settle(raw)
        if peer.table:
            if database is None:
                raise Skipped("no PostgreSQL here: apt-get install postgresql")
            database.empty()
            with running([*worker, "schema"], env) as making:
                _end(making, "making its tables")
        if part == "drain":
            with running(producer, env) as filling:
                _end(filling, "filling")
        with contextlib.ExitStack() as children:
            started = [children.enter_context(running(worker, env))]
            if part != "drain":
                started.append(children.enter_context(running(producer, env)))
            done = _wait_for(raw, "peers:done", started)
            began, ended = int(done["began"]), int(done["ended"])
            acked_ms = _acked_ms(raw, database, peer, ended)
            sent_rate = None
            if part != "drain":
                sent = _wait_for(raw, "peers:sent", started)
                began = int(sent["began"])
                sent_rate = count / (int(sent["ended"]) - began) * 1e9
    seconds = (ended - began) / 1e9
    measured = count - 1 if part == "drain" else count  # the first message starts the clock
    return Run(
        count,
        rate=measured / seconds,
        cpu_us=done["cpu"] / 1e3 / count,
        late_ms=tuple(ns / 1e6 for ns in done["late"] or ()),
        acked_ms=acked_ms,
        sent_rate=sent_rate if part == "one" else None,
    )
