"""The wire: the only floor that imports `redis`.

Executor and AsyncExecutor drive flows against a server. They send a command, load the script where
Redis has forgotten it, repeat what may be repeated, and translate errors. redis-py's own repeating
is switched off: every RMQ command is safe to run twice, and the executor alone decides how long to
    go on.
"""

from rmq.wire.aio import AsyncExecutor
from rmq.wire.blocking import Executor

__all__ = ["AsyncExecutor", "Executor"]
