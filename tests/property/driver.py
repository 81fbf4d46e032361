"""Calls RMQ through either client alike, and causes two faults on the way.

`lost`: every command of the next call is sent twice and the second answer is the one that is seen,
which is what a client lives through when a reply is lost after the server has done the work.
`crashing`: the process dies right after the server's answer to the next prepare.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from typing import Any

import rmq


class Driver:
    """A client, sync or async, behind one blocking face."""

    def __init__(
        self, url: str, is_async: bool, timeout: float = 10.0, retry_for: float = 5.0,
        **options: Any,
    ) -> None:  # fmt: skip
        self.url = url
        self.options = {"timeout": timeout, "retry_for": retry_for, **options}
        self.loop = asyncio.new_event_loop() if is_async else None
        self.lost = self.crashing = False
        self.doubled = 0
        self.open()

    def open(self) -> None:
        cls: Any = rmq.Client if self.loop is None else rmq.AsyncClient
        self.client = cls(self.url, **self.options)
        transport = self.client._transport
        for verb in ("_command", "_pipeline"):
            setattr(transport, verb, self._doubling(getattr(transport, verb)))

    def _doubling(self, once: Any) -> Any:
        if self.loop is None:

            def twice(*args: Any) -> Any:
                if self.lost:
                    self.doubled += 1
                    once(*args)
                return self.answered(args[0], once(*args))

            return twice

        async def twice_async(*args: Any) -> Any:
            if self.lost:
                self.doubled += 1
                await once(*args)
            return self.answered(args[0], await once(*args))

        return twice_async

    def answered(self, command: Any, value: Any) -> Any:
        """A mutant may add a step of its own here."""
        return value

    def do(self, value: Any) -> Any:
        """Wait for a call of either client."""
        if inspect.isawaitable(value):
            assert self.loop is not None
            return self.loop.run_until_complete(value)
        return value

    def pause(self, seconds: float) -> Any:
        return time.sleep(seconds) if self.loop is None else asyncio.sleep(seconds)

    def reopen(self) -> None:
        self.do(self.client.close())
        self.open()

    def close(self) -> None:
        self.do(self.client.close())
        if self.loop is not None:
            self.loop.close()
