"""Groups that are broken on purpose: each is to be found by a storm of groups.

forgets-next  an ack does not let the next message of the group out
two-out       two of a group in order may be out
wrong-place   messages are held before the others of their priority, not behind them
first-priority  of a group the messages of the largest priority alone are looked up
"""

from __future__ import annotations

from rmq.kernel.core.groups import Groups
from rmq.kernel.transport.lua import script_loader
from tests.property.mutants import Change, loader

BROKEN: dict[str, list[Change]] = {
    "forgets-next": [
        ("ack", "'ZADD', store, 'XX',", "'ZMSCORE', store,"),
    ],
    "two-out": [],
    "wrong-place": [
        (
            "send",
            "priority * 2097152 + 2097152 - 1 - place",
            "priority * 2097152 + place",
        )
    ],
    "first-priority": [
        ("ack", "if #members == most then", "if true then"),
        ("nack", "if #members == most then", "if true then"),
    ],
}


def apply(name: str) -> None:
    """Break this process; '': leave it as it is."""
    if name == "two-out":
        Groups.of_slot = lambda self: "2:0:0"  # type: ignore[method-assign]
    if BROKEN.get(name):
        script_loader.load = loader(BROKEN[name])  # type: ignore[assignment]
