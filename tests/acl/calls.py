"""Note what the clients of a role call, and which commands a server ran meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rmq.kernel.transport.single.asyncio import AsyncTransport
from rmq.kernel.transport.single.blocking import Transport
from rmq.kernel.transport.single.server_commands import ServerCommands
from tests.acl.scene import USER


@contextmanager
def noted(scripts: set[str]) -> Iterator[None]:
    """Note the scripts that clients of the user call."""

    def is_users(address: Any) -> bool:
        return f"//{USER}:" in address.url

    with pytest.MonkeyPatch.context() as patch:
        for transport in (Transport, AsyncTransport):
            command = transport._command

            def call(self: Any, given: Any, command: Any = command) -> Any:
                if is_users(self.address):
                    scripts.update({given.script.name} if given.script.sha else ())
                return command(self, given)

            patch.setattr(transport, "_command", call)
        pipeline = ServerCommands.pipeline

        def calls(self: Any, given: Any, durability: Any) -> Any:
            if is_users(self._address):
                scripts.update(command.script.name for command in given if command.script.sha)
            return pipeline(self, given, durability)

        patch.setattr(ServerCommands, "pipeline", calls)
        yield


def ran(raw: Any) -> set[str]:
    """The commands that a server ran since its figures were reset, those of scripts among them."""
    stats = raw.info("commandstats")
    return {name.removeprefix("cmdstat_").lower() for name in stats}
