"""The server that a run measures, and the description of the machine."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import redis

from tests.servers import Server, engines

REPLY_S = 60.0  # how long a plain client waits; redis-py's 5 s are too few on a busy machine


@contextlib.contextmanager
def server(engine: str | None = None) -> Iterator[Server]:
    """Start a server on loopback TCP, without persistence: PATH's, else pip's newest.

    Args:
        engine: another one, by name and version as `engines` has it: "valkey-9.1".
    """
    preferred = shutil.which("redis-server") or list(engines().values())[-1]
    own = Server(engines()[engine] if engine else preferred)
    try:
        yield own
    finally:
        own.stop()


def settle(raw: redis.Redis) -> None:
    """Empty the server, so that all rounds begin alike."""
    raw.flushall(asynchronous=True)  # millions of keys would take longer than a client waits
    while raw.info("memory")["lazyfree_pending_objects"]:
        time.sleep(0.01)
    raw.config_resetstat()


def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _engine(raw: redis.Redis) -> dict[str, str]:
    info = raw.info("server")
    if "valkey_version" in info:
        return {"valkey-server": str(info["valkey_version"])}
    return {"redis-server": str(info["redis_version"])}


def description(raw: redis.Redis) -> dict[str, str]:
    """Return the facts that a comparison of two runs needs."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": f"{_cpu()}, {os.cpu_count()} cores",
        "load before": f"{os.getloadavg()[0]:.1f}",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **_engine(raw),
        "allocator": str(raw.info("memory")["mem_allocator"]),
        "redis-py": version("redis"),
        "hiredis": version("hiredis"),
        "rmq": version("rmq"),
    }


@contextlib.contextmanager
def placed(server: Server, cores: int) -> Iterator[bool]:
    """Keep client and server on two cores, or on one; yields whether this system can.

    Left free, the scheduler does now this, now that, and a single request and reply is then bound
    by how a sleeping core wakes. Two cores are as two machines; one core shows CPU time alone.
    """
    assert server.process is not None
    affinity = getattr(os, "sched_setaffinity", None)
    before = sorted(os.sched_getaffinity(0)) if affinity else []
    if affinity is None or len(before) < cores:
        yield False
        return
    affinity(0, {before[0]})
    affinity(server.process.pid, {before[cores - 1]})
    try:
        yield True
    finally:
        affinity(0, before)
        affinity(server.process.pid, before)
