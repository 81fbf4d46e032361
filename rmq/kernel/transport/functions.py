"""The scripts as one library of Redis functions, for users who may not load or run other Lua.

A function is the text of a script with KEYS and ARGV as its arguments. The library's name has a
hash of its content, so that each version of RMQ finds its own. Redis 7 and Valkey keep libraries
as data: in the AOF and the RDB file, and on replicas.
"""

from __future__ import annotations

import functools
import hashlib
import re
from typing import Literal, get_args

from rmq.kernel.transport import scripts

Calls = Literal["scripts", "functions"]
CALLS: tuple[Calls, ...] = get_args(Calls)

LOAD_COMMAND = "rmq functions load"  # what errors tell an operator to run
PATTERN = "rmq_*"  # names of libraries, for FUNCTION LIST
NAME = re.compile(r"rmq_[0-9a-f]{12}")

# A script is stopped at maxmemory by its first write, if that is one that adds. A function is not:
# either it may do everything there, or Redis refuses to begin it. These add something, and their
# scripts are stopped; all others settle, give back, delete or look, and must work.
REFUSED_AT_MAXMEMORY = frozenset((
    "job_start", "lateness_report", "merge", "publish", "redrive", "redrive_hold", "redrive_send",
    "reschedule", "sample", "schedule_pause", "schedule_resume", "schedule_send", "schedule_set",
    "send", "set_priority", "sink_begin", "stage_push", "topic_resize", "topic_set",
))  # fmt: skip


@functools.cache
def library_name() -> str:
    """The name of the library of this RMQ: `rmq_` and 12 digits of the SHA-1 of its content."""
    digest = hashlib.sha1(_text("rmq", "").encode(), usedforsecurity=False).hexdigest()
    return f"rmq_{digest[:12]}"


@functools.cache
def function_name(script: str) -> str:
    """The name of the function that does what a script does; names are unique on a server."""
    return f"{library_name()}_{script}"


def library_text(version: str) -> str:
    """Return the library as FUNCTION LOAD takes it.

    Args:
        version: of RMQ; what FUNCTION LIST shows as the description of each function.
    """
    return _text(library_name(), f"RMQ {version}")


def _text(library: str, description: str) -> str:
    made = "".join(
        f"redis.register_function{{function_name='{library}_{name}', flags={{{_flags(name)}}}, "
        f"description='{description}', callback=function(KEYS, ARGV)\n"
        f"{scripts.load(name).text}end}}\n"
        for name in scripts.names()
    )
    return f"#!lua name={library}\n{made}"


def _flags(script: str) -> str:
    if scripts.commands_in(script) <= scripts.READS:
        return "'no-writes'"  # so that it works where Redis takes no writes
    return "" if script in REFUSED_AT_MAXMEMORY else "'allow-oom'"
