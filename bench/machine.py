"""The measured server, the description of the machine, and the load of other programs."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import psutil
import redis

from bench.child import ROOT
from tests.servers import Server, engines

# Files that affect speed; pages and results of earlier runs do not.
_MEASURED = ("rmq", "lua", "bench", "tests", ":!*.md", ":!bench/results")
_PR_SET_CHILD_SUBREAPER = 36
# An append-only file that is synced each second, as in production. Redis rewrites it rarely, so few
# rounds include a rewrite, and the size of the file has a limit.
EVERYSEC = (
    "--appendonly", "yes", "--appendfsync", "everysec", "--auto-aof-rewrite-min-size", "4gb",
)  # fmt: skip
REPLY_S = 60.0  # longest wait of a plain client; redis-py's 5 s are too short on a busy machine


@contextlib.contextmanager
def server(engine: str | None = None) -> Iterator[Server]:
    """Start a server on loopback TCP with `appendfsync everysec`, from PATH or else pip's newest.

    Args:
        engine: Name and version of another engine, as in `engines`: "valkey-9.1".
    """
    preferred = shutil.which("redis-server") or list(engines().values())[-1]
    own = Server(engines()[engine] if engine else preferred, *EVERYSEC)
    try:
        yield own
    finally:
        own.stop()


def used_cpu_s(raw: redis.Redis) -> float:
    """Return the CPU time that a server has used in all its threads, s."""
    info = raw.info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


def settle(raw: redis.Redis) -> None:
    """Empty the server, so that all rounds start in the same state."""
    raw.flushall(asynchronous=True)  # deleting millions of keys would exceed the client's timeout
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


def commit(checkout: Path = ROOT) -> str:
    """Return the commit of a checkout, with a + if its code differs from it; "" without git."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=checkout, capture_output=True, text=True)
        return done.stdout.strip()

    try:
        name = git("rev-parse", "--short=12", "HEAD")
        return f"{name}+" if name and git("status", "--porcelain", "--", *_MEASURED) else name
    except OSError:
        return ""


def _appendonly(raw: redis.Redis) -> str:
    """Return "no", or "yes" and when the append-only file is synced."""
    settings = raw.config_get("append*")
    if settings["appendonly"] != "yes":
        return "no"
    return f"yes, {settings['appendfsync']}"


def description(raw: redis.Redis) -> dict[str, str]:
    """Return the facts that are needed to compare two runs."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "cpu": f"{_cpu()}, {os.cpu_count()} cores",
        "load before": f"{os.getloadavg()[0]:.1f}",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **_engine(raw),
        "appendonly": _appendonly(raw),
        "allocator": str(raw.info("memory")["mem_allocator"]),
        "redis-py": version("redis"),
        "hiredis": version("hiredis"),
        "rmq": version("rmq"),
    }


def _cpu_of_all_s() -> float:
    """Return the CPU time of all processes since the boot, including time stolen by the host, s."""
    times = psutil.cpu_times()
    names = ("user", "nice", "system", "irq", "softirq", "steal")
    return sum(float(getattr(times, name, 0.0)) for name in names)


def _own_cpu_s() -> float:
    """Return the CPU time of this process and its descendants, including ended processes, s."""
    me, total = psutil.Process(), 0.0
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def adopt_orphans() -> None:
    """Remain the ancestor of processes whose parent ends first, so that their CPU time counts."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


class OthersLoad:
    """The load of other programs from now on: how many cores they keep busy.

    It is the CPU time of the machine per second, including time that its host steals, without the
    CPU time of the bench and its children. A program that always wants a core has a load average
    of 1. Its load here is less: next to a busy client and server, two thirds of one of two cores.
    """

    def __init__(self) -> None:
        self._began, self._all, self._own = time.monotonic(), _cpu_of_all_s(), _own_cpu_s()

    def cores(self) -> float:
        """Return the average number of busy cores."""
        others = (_cpu_of_all_s() - self._all) - (_own_cpu_s() - self._own)
        return max(0.0, others / (time.monotonic() - self._began))


@contextlib.contextmanager
def placed(*servers: Server, cores: int) -> Iterator[bool]:
    """Keep client and servers on two cores, or on one; yield whether this system can do that.

    Without it, the scheduler decides differently each time, and the time of a single request
    depends on how fast a sleeping core wakes up. Two cores are like two machines; one core shows
    CPU time alone.
    """
    pids = [server.process.pid for server in servers if server.process is not None]
    affinity = getattr(os, "sched_setaffinity", None)
    before = sorted(os.sched_getaffinity(0)) if affinity else []
    if affinity is None or len(before) < cores:
        yield False
        return
    affinity(0, {before[0]})
    for pid in pids:
        affinity(pid, {before[cores - 1]})
    try:
        yield True
    finally:
        for pid in (0, *pids):
            affinity(pid, before)
