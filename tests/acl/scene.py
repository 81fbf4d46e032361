"""A topic, a client that may do everything, and one whose user has the rules of a role."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from typing import Any

import rmq
from rmq.kernel.topic import clock as command_clock
from rmq.kernel.transport.acl import AclRules, Role, ServerVersion
from tests.integration.driven import Driven, connect
from tests.patience import PATIENCE_S, wait_for
from tests.servers import Server

USER, PASSWORD = "app", "secret"
# By step, what it tries and does without where it may not: docs/security.md.
DONE_WITHOUT = {
    "opens": {"info"}, "opens_anew": {"info"}, "looks": {"zrem"}, "serves_schedules": {"srem"},
    "counts_a_history": {"hset", "zrem"},
}  # fmt: skip


def version_of(server: Server) -> ServerVersion:
    """The version of rules for a server."""
    with server.raw() as raw:
        info: Any = raw.info("server")
    if "valkey_version" in info:
        return "7.2"
    told = ".".join(info["redis_version"].split(".")[:2])
    return "6.2" if told < "7" else "7.0" if told == "7.0" else "7.2"


class Scene:
    """Where a step of a role takes place."""

    def __init__(self, server: Server, name: str) -> None:
        self.server = server
        self.name = name
        self.kind = "sync"
        self.raw = server.raw()
        self.full = rmq.Client(server.url, retry_for=2)
        self.url = server.url.replace("redis://", f"redis://{USER}:{PASSWORD}@")
        self._made: list[Any] = []

    def rules(self, role: Role | Iterable[Role], **options: Any) -> AclRules:
        roles: Any = role if isinstance(role, str) else list(role)
        given = {
            "topics": [self.name, f"{self.name}b"],
            "server_version": version_of(self.server),
        } | options
        return rmq.acl_rules(roles, **given)

    def grant(self, role: Role | Iterable[Role], without: str = "", **options: Any) -> AclRules:
        """Give the user the rules of a role, one command left out."""
        rules = self.rules(role, **options)
        words = (word for word in rules.words() if word != f"+{without}")
        in_selector = re.compile(rf" \+{re.escape(without or 'no such command')}\b")
        self.grant_words(in_selector.sub("", word) for word in words)
        self.forget_refusals()
        return rules

    def grant_words(self, words: Iterable[str]) -> None:
        self.raw.execute_command("ACL", "SETUSER", USER, "on", "resetpass", f">{PASSWORD}", *words)

    @property
    def servers(self) -> Iterable[Server]:
        """The servers that know the user."""
        return [self.server]

    def refused(self) -> set[str]:
        """Return the commands, and keys and channels of this topic, that the user was refused.

        That is since the last grant; a library or a service may hide a refusal from its caller.
        """
        found = set[str]()
        for server in self.servers:
            with server.raw(decode_responses=True) as raw:
                for entry in raw.acl_log():
                    if entry["reason"] == "command" or self.name in entry["object"]:
                        found.add(entry["object"].lower())
        return found

    def forget_refusals(self) -> None:
        for server in self.servers:
            with server.raw() as raw:
                raw.acl_log_reset()

    def connect(self, **options: Any) -> Any:
        """A client of the user."""
        made = connect(self.kind, self.url, retry_for=0, timeout=PATIENCE_S, **options)
        self._made.append(made.__enter__())
        return self._made[-1]

    @property
    def api(self) -> Any:
        """A client of the user; made by the first use."""
        return self._made[0] if self._made else self.connect()

    @property
    def transport(self) -> Any:
        """Drives flows for `api`."""
        client = self.api.target if isinstance(self.api, Driven) else self.api
        return client._transport

    def run(self, flow: Any) -> Any:
        """Run a flow as the user."""
        if isinstance(self.api, Driven):
            return self.api.loop.run_until_complete(self.transport.run(flow))
        return self.transport.run(flow)

    def topic(self, **settings: Any) -> Any:
        """The topic, as the user sees it; it exists."""
        self.full.topic(self.name, **settings).open()
        return self.api.topic(self.name)

    def later(self, seconds: float) -> None:
        """Let time pass for the scripts."""
        command_clock.set_clock(round((time.time() + seconds) * 1_000_000))

    def see_renewal(self) -> None:
        """Wait until the heartbeat of a worker has renewed the shared lease of the slot."""
        key = f"rmq:{{{self.name}_0}}:leases"
        first: Any = self.raw.zrange(key, 0, -1, withscores=True)
        assert first, "there is no lease"
        wait_for(
            lambda: self.raw.zrange(key, 0, -1, withscores=True) != first,
            "the lease was not renewed",
        )

    def close(self) -> None:
        for made in reversed(self._made):
            made.__exit__(None, None, None)
        self.full.close()
        self.raw.execute_command("ACL", "DELUSER", USER)
        self.raw.close()


Step = Callable[[Scene], None]
