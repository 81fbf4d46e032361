"""Leadership: only one of several servers, the leader, runs some of the services.

The leader stores its leadership in Redis for a limited time and renews it. Leadership avoids double
work, but it is not a lock. A server that was suspended may believe for a moment that it is still
the leader. So two servers must be able to run every service at the same time.
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
from rmq.kernel.transport.flow.steps import Flow
from rmq.kernel.transport.single.blocking import Transport

log = logging.getLogger("rmq")

HOLD_S = 15.0  # after this time without a renewal, another server leads
RENEW_S = 5.0


def _renew(prefix: str, server: str) -> Flow[leader.LeaderReply]:
    reply: leader.LeaderReply = yield leader.leader_renew(prefix, server, round(HOLD_S * 1000))
    return reply


def _release(prefix: str, server: str) -> Flow[bool]:
    released: bool = yield leader.leader_release(prefix, server)
    return released


class Leadership:
    """The service that renews this server's leadership.

    If no server is the leader, this server becomes the leader.

    Attributes:
        server: Id of this server: host, process and 4 random bytes.
        leader: Id of the leader at the last read.
        answered_at: Monotonic time at which Redis last ran the script, or None.
        refuses_writes: Whether Redis has answered that it cannot write to its disk.
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
        self._until = 0.0  # end of the leadership, by the monotonic clock

    def leads(self) -> bool:
        """Return whether this server is the leader, by its own clock."""
        return time.monotonic() < self._until

    def run_once(self) -> int:
        """Renew the leadership, or become the leader."""
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
            log.info("server %s leads; this server is standing by", reply.leader)
        self.leader = reply.leader
        self._until = asked_at + HOLD_S if reply.leads else 0.0
        return 1

    def release(self) -> None:
        """Give up the leadership.

        Another server can become the leader immediately. If Redis cannot be reached, this takes
        HOLD_S seconds.
        """
        self._until = 0.0
        with suppress(RMQError):
            self._transport.run(_release(self._prefix, self.server))
