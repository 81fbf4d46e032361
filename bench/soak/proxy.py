"""A TCP proxy in a thread, between a client and its Redis, that imitates network faults.

cut     the server has executed the n-th matching call, and the connection ends before the reply,
        or in the middle of it
hold    a matching request arrives late, even if its sender has disconnected
delay   every byte is late
hole    no bytes pass, and no RST is sent
strand  existing connections stay open and pass nothing; new connections work (half-open)
deafen  the same only for connections that have subscribed to a channel
reset   every connection ends at once
refuse  new connections end at once, as if the server was down
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

from rmq.errors import Unavailable
from rmq.kernel.transport.lua import script_loader

START_S = 30.0  # longest wait for a start, which takes milliseconds on an idle machine
CHUNK = 1 << 20  # bytes read at a time


class _Plan:
    """A fault that waits for its call."""

    def __init__(self, verb: str, skip: int, times: int, hold_s: float, inside: bool) -> None:
        # A script is identified by its verb, a plain command by its name in capitals.
        self.mark = verb.encode() if verb.isupper() else script_loader.load(verb).sha.encode()
        self.skip = skip
        self.times = times
        self.hold_s = hold_s
        self.inside = inside

    def matches(self, data: bytes) -> bool:
        """Return whether this request triggers the fault."""
        if self.times == 0 or self.mark not in data:
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.times -= 1
        return True


class Proxy:
    """Listens on its own port; `fired` counts the faults that happened.

    Args:
        target: Port of the server on this machine, or path of its unix socket.
    """

    def __init__(self, target: int | str) -> None:
        self.target = target
        self.delay_s = 0.0
        self.hole = False
        self.refuse = False
        self.fired = 0
        self.port = 0
        self._accepted = 0  # connections so far
        self._stranded = 0  # number of first connections that pass nothing
        self._subscribed: set[int] = set()  # numbers of connections with a subscription
        self._deaf: set[int] = set()
        self._plan: _Plan | None = None
        self._inside = False  # whether the current cut passes half of the reply
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        if not self._up.wait(START_S):
            raise Unavailable("the proxy does not start")

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"redis://127.0.0.1:{self.port}/0"

    def cut(self, verb: str, *, skip: int = 0, times: int = 1, inside: bool = False) -> None:
        """Lose the replies of the next calls of a script, after `skip` calls that pass.

        With `inside`, the first half of the reply arrives.
        """
        self._plan = _Plan(verb, skip, times, 0, inside)

    def pass_all(self) -> None:
        """Cancel a cut or a hold that still waits for its call."""
        self._plan = None

    def hold(self, verb: str, seconds: float, *, skip: int = 0) -> None:
        """Deliver the next call of a script late, after `skip` calls that pass."""
        self._plan = _Plan(verb, skip, 1, seconds, False)

    def strand(self) -> None:
        """Keep all existing connections open, and pass nothing on them."""
        self.fired += 1
        self._stranded = self._accepted

    def unsubscribe(self) -> int:
        """Strand only the connections with a subscription; return their number."""
        self.fired += 1
        self._deaf |= self._subscribed
        return len(self._deaf)

    def reset(self) -> None:
        """End every connection with an RST."""
        self.fired += 1
        self._loop.call_soon_threadsafe(self._abort)

    def close(self) -> None:
        """End every connection, and the thread."""
        self._loop.call_soon_threadsafe(self._abort)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def _abort(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(
            asyncio.start_server(self._serve, "127.0.0.1", 0, limit=CHUNK)
        )
        self.port = server.sockets[0].getsockname()[1]
        self._up.set()
        self._loop.run_forever()
        server.close()
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._accepted += 1
        number = self._accepted
        if self.refuse:
            writer.transport.abort()
            return
        with contextlib.suppress(OSError, asyncio.CancelledError):
            if isinstance(self.target, str):
                there, server = await asyncio.open_unix_connection(self.target)
            else:
                there, server = await asyncio.open_connection("127.0.0.1", self.target)
            self._writers |= {writer, server}
            cutting = asyncio.Event()
            back = asyncio.create_task(self._replies(there, writer, cutting, number))
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await self._requests(reader, server, cutting, number)
            with contextlib.suppress(OSError):
                server.close()
            await asyncio.wait([back])
            self._writers -= {writer, server}
        writer.close()

    async def _pass(self, number: int) -> None:
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        while self.hole:  # noqa: ASYNC110 - another thread fills it in
            await asyncio.sleep(0.01)
        if number <= self._stranded or number in self._deaf:
            # Wait forever: hundreds of polling connections would slow down all others.
            await asyncio.Event().wait()

    async def _requests(
        self,
        reader: asyncio.StreamReader,
        server: asyncio.StreamWriter,
        cutting: asyncio.Event,
        number: int,
    ) -> None:
        while data := await reader.read(CHUNK):
            if b"SUBSCRIBE" in data:
                self._subscribed.add(number)
            await self._pass(number)
            plan = self._plan
            if plan is not None and plan.matches(data):
                if plan.hold_s:
                    await asyncio.sleep(plan.hold_s)
                    self.fired += 1
                else:
                    self._inside = plan.inside
                    cutting.set()
            server.write(data)
            await server.drain()

    async def _replies(
        self,
        there: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        cutting: asyncio.Event,
        number: int,
    ) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            while data := await there.read(CHUNK):
                if cutting.is_set():
                    self.fired += 1
                    if self._inside:
                        writer.write(data[: len(data) // 2])
                        await writer.drain()
                        writer.close()
                        return
                    writer.transport.abort()
                    return
                await self._pass(number)
                writer.write(data)
                await writer.drain()
        with contextlib.suppress(OSError):
            writer.close()


@contextlib.contextmanager
def between(target: int | str) -> Iterator[Proxy]:
    """Run a proxy in front of this server."""
    proxy = Proxy(target)
    try:
        yield proxy
    finally:
        proxy.close()
