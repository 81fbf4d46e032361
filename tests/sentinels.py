"""A master, two replicas and three sentinels on loopback: what `redis+sentinel://` is tested on."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import redis

from tests.patience import wait_for
from tests.servers import Server

SERVICE = "orders-db"
# A sentinel pings once a second. After a failover it pings a new master for the first time up to a
# second later. With 1000 ms here, it sometimes took the new master for dead, and a second failover
# lost what the new master had stored.
DOWN_AFTER_MS = 1500
PATIENCE_S = 120.0  # for six processes to agree, on a busy machine


class SentinelServer(Server):
    """A sentinel. Its configuration is a file, which it rewrites as it learns.

    Args:
        binary: of the server.
        master_port: what it monitors.
        quorum: how many sentinels must agree that the master is down.
        password: of the sentinels.
        lines: more configuration.
        host: of the master.
    """

    def __init__(
        self, binary: str, master_port: int, quorum: int, password: str = "",
        lines: Sequence[str] = (), host: str = "127.0.0.1",
    ) -> None:  # fmt: skip
        self._master, self._quorum, self._password = f"{host} {master_port}", quorum, password
        self._lines = lines
        super().__init__(binary)

    def words(self) -> list[str]:
        config = Path(self.dir, "sentinel.conf")
        if not config.exists():
            lines = [
                f"port {self.port}", "bind 127.0.0.1", f"dir {self.dir}",
                f"logfile {self.dir}/redis.log",
                f"sentinel monitor {SERVICE} {self._master} {self._quorum}",
                f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}",
                f"sentinel failover-timeout {SERVICE} 5000",
                f"sentinel parallel-syncs {SERVICE} 2",
                *self._lines,
            ]  # fmt: skip
            if self._password:
                lines += [
                    f"requirepass {self._password}",
                    f"sentinel sentinel-pass {self._password}",
                ]
            config.write_text("\n".join(lines) + "\n")
        return [self.binary, str(config), "--sentinel"]

    def raw(self, **options: object) -> redis.Redis:
        if self._password:
            options = {"password": self._password, **options}
        return super().raw(**options)


class Sentinels:
    """The servers of one service.

    Args:
        binary: of all of them.
        password: of the sentinels.
        lines: more configuration of the sentinels.
    """

    def __init__(self, binary: str, password: str = "", lines: Sequence[str] = ()) -> None:
        self.servers: list[Server] = []
        self.sentinels: list[Server] = []
        try:
            self._start(binary, password, lines)
        except BaseException:
            self.stop()
            raise

    def _start(self, binary: str, password: str, lines: Sequence[str]) -> None:
        master = Server(binary, "--repl-diskless-load", "swapdb", "--repl-timeout", "10")
        self.servers.append(master)
        for _ in range(2):
            self.servers.append(Server(binary, "--replicaof", "127.0.0.1", str(master.port)))
        self._wait(lambda: self._replicas(master) == 2, "the replicas follow")
        for _ in range(3):
            self.sentinels.append(SentinelServer(binary, master.port, 2, password, lines))
        self._wait(lambda: all(map(self._knows_all, self.sentinels)), "the sentinels know all")

    def url(self, path: str = f"/{SERVICE}/0", user: str = "", scheme: str = "redis") -> str:
        """The URL of the service."""
        hosts = ",".join(f"127.0.0.1:{one.port}" for one in self.sentinels)
        return f"{scheme}+sentinel://{user}{hosts}{path}"

    @property
    def hosts(self) -> list[tuple[str, int]]:
        return [("127.0.0.1", one.port) for one in self.sentinels]

    @property
    def master(self) -> Server:
        """The server that the sentinels name; waits while they name one that is down."""
        found: list[Server] = []

        def look() -> bool:
            port = self._master_port()
            found[:] = [one for one in self.servers if one.port == port]
            return bool(found)

        self._wait(look, "a master")
        return found[0]

    def fail_over(self, fault: Callable[[Server], Any]) -> tuple[Server, Server]:
        """Strike the master; return it and the new one as soon as a sentinel names it."""
        old = self.master
        fault(old)
        self._wait(lambda: self._master_port() not in (None, old.port), "another master")
        return old, self.master

    def settle(self) -> None:
        """Wait until every server runs, and both replicas follow the master."""
        for one in self.servers:
            if one.process is not None and one.process.poll() is not None:
                one.start()
            one.signal(signal.SIGCONT)
        self._wait(lambda: self._replicas(self.master) == 2, "two replicas follow the master")
        self._wait(lambda: all(map(self._knows_all, self.sentinels)), "the sentinels know all")

    def stop(self) -> None:
        for one in (*self.sentinels, *self.servers):
            one.stop()

    def _master_port(self) -> int | None:
        for sentinel in self.sentinels:
            with contextlib.suppress(redis.RedisError), sentinel.raw(socket_timeout=1) as raw:
                state: Any = raw.execute_command("SENTINEL MASTER", SERVICE)
                return None if state["is_sdown"] else int(state["port"])
        return None

    @staticmethod
    def _replicas(master: Server) -> int:
        with contextlib.suppress(redis.RedisError), master.raw(socket_timeout=1) as raw:
            info: Any = raw.info("replication")
            states = [value["state"] for key, value in info.items() if key[:5] == "slave" and
                      isinstance(value, dict)]  # fmt: skip
            return states.count("online")
        return 0

    @staticmethod
    def _knows_all(sentinel: Server) -> bool:
        with contextlib.suppress(redis.RedisError), sentinel.raw(socket_timeout=1) as raw:
            state: Any = raw.execute_command("SENTINEL MASTER", SERVICE)
            replicas: Any = raw.execute_command("SENTINEL SLAVES", SERVICE)
            is_well = [not (one["is_sdown"] or one["is_disconnected"]) for one in replicas]
            return (
                int(state["num-other-sentinels"]) == 2
                and not state["is_sdown"]
                and sum(is_well) == 2
                and all(one["master-link-status"] == "ok" for one in replicas)
            )
        return False

    @staticmethod
    def _wait(what: Callable[[], bool], text: str) -> None:
        wait_for(what, text, PATIENCE_S)
