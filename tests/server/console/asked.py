"""The calls that pages make, as Redis tells: SLOWLOG without a threshold, and MONITOR.

Commands that scripts call are left out: their time is that of the script. A server whose services
another one leads sends a few commands of its own, every 2 to 5 s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from unittest import mock

from rmq.http_framework import readings as web_readings
from rmq.http_framework.readings import Readings
from rmq.kernel.transport.lua import script_loader as transport_scripts
from tests.servers import Server as Redis

MOST = 200_000  # calls that are kept


RUN = ("evalsha", "evalsha_ro", "fcall", "fcall_ro")
OF_CONNECTIONS = ("HELLO", "CLIENT", "SELECT", "INFO")  # INFO: of a client that connects


@contextmanager
def forgetting() -> Iterator[Callable[[], None]]:
    """Yield what makes the servers of a block forget the readings that viewers share."""
    made: list[Readings] = []

    def make() -> Readings:
        made.append(Readings())
        return made[-1]

    def forget() -> None:
        for readings in made:
            readings._kept.clear()
            readings._long.clear()

    with mock.patch.object(web_readings, "Readings", make):
        yield forget


class Call(NamedTuple):
    """A call of Redis: its command or script, and how long it ran."""

    name: str
    us: int


@dataclass
class Asked:
    """The calls of a while.

    Attributes:
        calls: in any order.
        scripts: how many were run.
        bytes: that Redis answered meanwhile, to anybody.
    """

    calls: list[Call] = field(default_factory=list)
    scripts: int = 0
    bytes: int = 0

    @property
    def longest(self) -> Call:
        """The call that took longest."""
        return max(self.calls, key=lambda call: call.us, default=Call("", 0))


class Watch:
    """Watches a Redis.

    Args:
        redis: whose SLOWLOG is used; its settings are changed.
        above_us: shorter calls are not noted; 0: all are, those inside scripts take places, too.
    """

    def __init__(self, redis: Redis, above_us: int = 0) -> None:
        self._raw = redis.raw()
        self._raw.config_set("slowlog-max-len", MOST)
        self._raw.config_set("slowlog-log-slower-than", above_us)
        self._own = self._raw.client_info()["addr"]
        self._redis = redis
        self._names = {transport_scripts.load(name).sha: name for name in transport_scripts.names()}

    @contextmanager
    def calls(self) -> Iterator[Asked]:
        """Yield what fills with the calls of a block, at its end."""
        asked = Asked()
        self._raw.slowlog_reset()
        before, scripts_before = self._answered(), self._scripts()
        yield asked
        asked.bytes = self._answered() - before
        asked.scripts = self._scripts() - scripts_before
        entries: Any = self._raw.slowlog_get(MOST)
        for entry in entries:
            address = entry["client_address"].decode()
            if address.startswith("127.0.0.1:") and address != self._own:  # a script has none
                asked.calls.append(Call(self._name(entry["command"]), entry["duration"]))

    @contextmanager
    def commands(self) -> Iterator[list[str]]:
        """Yield what fills with the commands that clients send in a block, at its end."""
        found: list[str] = []
        with self._redis.raw() as raw, raw.monitor() as monitor:
            yield found
            self._raw.echo("the end")
            for each in monitor.listen():
                if each["command"] == "ECHO the end":
                    break
                address = f"{each['client_address']}:{each['client_port']}"
                name = self._name(each["command"].encode())
                if each["client_type"] != "lua" and address != self._own:
                    found += [] if name in OF_CONNECTIONS else [name]

    def _answered(self) -> int:
        return int(self._raw.info("stats")["total_net_output_bytes"])

    def _scripts(self) -> int:
        stats = self._raw.info("commandstats")
        return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in RUN)

    def _name(self, command: bytes) -> str:
        words = command.split()
        name = words[0].decode().upper()
        if name in ("EVALSHA", "EVALSHA_RO") and len(words) > 1:
            return self._names.get(words[1].decode(), name)
        return name

    def close(self) -> None:
        """Close the connection."""
        self._raw.close()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
