"""Warn of a Redis that may evict keys, which takes messages away and tells nobody.

`INFO` is enough, so that no right to `CONFIG` is needed. Where a user has no right to `INFO`
either, nothing is said. The policy is asked for when a topic is created and when a worker starts.
"""

from __future__ import annotations

import logging
import re
from contextlib import suppress

from rmq.errors import RMQError
from rmq.protocol.steps import Flow, RawCommand

log = logging.getLogger("rmq")

SAFE_POLICY = "noeviction"
_POLICY = re.compile(rb"^maxmemory_policy:(\S+)", re.MULTILINE)


def advice(policy: str | None) -> str | None:
    """Return what to do about a policy; None if it evicts nothing, or is not known."""
    if policy is None or policy == SAFE_POLICY:
        return None
    return (
        f"the maxmemory-policy of this Redis is {policy}: when its memory is full, it removes keys "
        "of RMQ, and the messages in them are lost. Set it: CONFIG SET maxmemory-policy "
        f"{SAFE_POLICY}, and in its configuration file"
    )


def warn() -> Flow[None]:
    """Log a warning if Redis may evict keys; of a Redis Cluster one node is asked."""
    with suppress(RMQError):
        info: bytes = yield RawCommand("info", "INFO", "memory")
        found = _POLICY.search(info)
        told = advice(found[1].decode() if found else None)
        if told:
            log.warning("%s", told)
