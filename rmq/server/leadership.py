"""Leadership: one of the servers of a Redis does the services that one server is enough for.

It is held for a time in Redis and renewed. It spares work and is no lock: a server that was stopped
may believe for a moment that it still leads, so every service is safe beside another server's.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from contextlib import suppress

from rmq.errors import RMQError, Unavailable
from rmq.kernel.transport import leader
from rmq.kernel.transport.blocking import Transport
from rmq.kernel.transport.steps import Flow

log = logging.getLogger("rmq")

HOLD_S = 15.0  # without a renewal, another server leads after so long
RENEW_S = 5.0


def _renew(prefix: str, server: str) -> Flow[leader.LeaderReply]:
    reply: leader.LeaderReply = yield leader.leader_renew(prefix, server, round(HOLD_S * 1000))
    return reply


def _release(prefix: str, server: str) -> Flow[bool]:
    released: bool = yield leader.leader_release(prefix, server)
    return released


class Leadership:
    """The service that renews this server's leadership, or takes it when it is free.

    Attributes:
        server: the id of this server: host, process and 4 random bytes.
        leader: the id of the server that leads, as last seen.
        answered_at: when Redis last ran the script, by the monotonic clock; None: not yet.
        refuses_writes: whether Redis answered instead that it cannot write to its disk.
    """

    name = "leadership"
    every_s = RENEW_S
    needs_leadership = False

    def __init__(self, transport: Transport, prefix: str) -> None:
        self.server = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self.leader = ""
        self.answered_at: float | None = None
        self.refuses_writes = False
        self._transport = transport
        self._prefix = prefix
        self._until = 0.0  # by the monotonic clock

    def leads(self) -> bool:
        """Whether this server leads, as far as it can know."""
        return time.monotonic() < self._until

    def run_once(self) -> int:
        """Renew or take the leadership."""
        asked_at = time.monotonic()
        try:
            reply = self._transport.run(_renew(self._prefix, self.server))
        except RMQError as error:
            self.refuses_writes = isinstance(error, Unavailable) and error._refuses_writes
            raise
        self.answered_at, self.refuses_writes = time.monotonic(), False
        if reply.leads and not self.leads():
            log.info("this server leads: %s", self.server)
        elif reply.leader != self.leader and not reply.leads:
            log.info("server %s leads; this one is ready to", reply.leader)
        self.leader = reply.leader
        self._until = asked_at + HOLD_S if reply.leads else 0.0
        return 1

    def release(self) -> None:
        """Let another server lead at once. Without Redis it does so when the time has ended."""
        self._until = 0.0
        with suppress(RMQError):
            self._transport.run(_release(self._prefix, self.server))
