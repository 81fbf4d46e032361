"""The time that a server and a client spend on calls, and the parts of a server's time.

Redis's time comes from `INFO commandstats`. The `usec` of EVALSHA is the whole run of the script,
including the commands that the script calls. These commands are counted again under their own
names, on Redis 6.2 and 7.0 and on Valkey 9.1. The time of EVALSHA minus the time of these commands
is the time of the script itself: the Lua interpreter, and passing arguments and replies.

`usec` is wall time, so a server that the scheduler interrupts seems slow. The least of many short
rounds is therefore shown. `usec` is the time of commands only. `INFO cpu` is the CPU time of the
whole main thread, including reading requests and writing replies.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from typing import Any

import redis

SCRIPTS = frozenset(("eval", "evalsha", "eval_ro", "evalsha_ro", "fcall", "fcall_ro"))
# Commands of the measurement itself, and of opening a connection or a topic.
IGNORED = frozenset(("info", "config", "client", "hello", "script", "ping", "flushall", "select"))

Stats = Mapping[str, tuple[int, int]]  # by command: calls and us


@dataclass(frozen=True)
class Spent:
    """Sums over the calls for several messages.

    Attributes:
        messages: Number of messages.
        script_us: Time of scripts in Redis, including the commands that they call.
        command_us: Time of commands, called by scripts or by the client.
        commands: Number of these commands.
        cpu_us: CPU time of the server's main thread.
        client_us: CPU time of the client's thread.
        aof_bytes: Bytes that the server appended to its append-only file.
    """

    messages: int = 0
    script_us: float = 0
    command_us: float = 0
    commands: int = 0
    cpu_us: float = 0
    client_us: float = 0
    aof_bytes: float = 0

    def __add__(self, other: Spent) -> Spent:
        return Spent(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def each(self) -> dict[str, float]:
        """Return the columns of the table, per message."""
        # Plain commands outside of scripts, as for large bodies, are counted as if scripts had
        # called them. Then `redis` is too low, and `cpu` is the figure to read.
        total = max(self.script_us, self.command_us)
        columns = {
            "redis": total,
            "commands": self.command_us,
            "script": total - self.command_us,
            "cpu": self.cpu_us,
            "calls": self.commands,
            "client": self.client_us,
            "aof": self.aof_bytes,
        }
        return {name: value / self.messages for name, value in columns.items()}


def read_stats(info: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Return calls and us by command, from redis-py's INFO commandstats."""
    return {
        name.removeprefix("cmdstat_"): (int(stat["calls"]), int(stat["usec"]))
        for name, stat in info.items()
    }


def split(before: Stats, after: Stats) -> tuple[int, int, int]:
    """Return the us of scripts, and us and number of other commands, between two readings."""
    script_us = command_us = commands = 0
    for name, (calls, us) in after.items():
        calls_before, us_before = before.get(name, (0, 0))
        if name in SCRIPTS:
            script_us += us - us_before
        elif name.split("|")[0] not in IGNORED:
            command_us += us - us_before
            commands += calls - calls_before
    return script_us, command_us, commands


def cpu_us(raw: redis.Redis) -> float:
    """Return the CPU time that the main thread of a server has used, us."""
    info = raw.info("cpu")
    seconds = info["used_cpu_user_main_thread"] + info["used_cpu_sys_main_thread"]
    return float(seconds) * 1e6


def aof_bytes(raw: redis.Redis) -> int:
    """Return the size of a server's append-only file, with what is not written yet; 0 without."""
    info = raw.info("persistence")
    return int(info.get("aof_current_size", 0)) + int(info.get("aof_buffer_length", 0))


class Meter:
    """Adds up the costs of one round, by verb."""

    def __init__(self, raw: redis.Redis) -> None:
        self._raw = raw
        self.spent: dict[str, Spent] = {}

    def _stats(self) -> dict[str, tuple[int, int]]:
        return read_stats(self._raw.info("commandstats"))

    @contextmanager
    def measure(self, verb: str, messages: int) -> Iterator[None]:
        """Count the work inside `with` for a verb on `messages` messages."""
        before = self._stats()
        before_bytes = aof_bytes(self._raw)
        before_us = cpu_us(self._raw)  # read last here and first below, to exclude other readings
        began = time.thread_time()
        yield
        client_us = (time.thread_time() - began) * 1e6
        redis_us = cpu_us(self._raw) - before_us
        script_us, command_us, commands = split(before, self._stats())
        appended = aof_bytes(self._raw) - before_bytes
        spent = Spent(messages, script_us, command_us, commands, redis_us, client_us, appended)
        self.spent[verb] = self.spent.get(verb, Spent()) + spent
