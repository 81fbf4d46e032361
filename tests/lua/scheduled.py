"""A schedule in a slot under test, for the tests of the scripts of schedules."""

from __future__ import annotations

from typing import Any

from rmq.features.schedules import scripts
from rmq.features.schedules.scripts import ScheduleRow
from tests.lua.box import Box

EVERY_MS = 60_000


def set_schedule(box: Box, name: str = "report", **options: Any) -> str:
    """Store a schedule whose next time is due in a minute, with a jitter of 7 ms."""
    next_ms = options.get("next_ms", box.clock.now_ms + EVERY_MS)
    return box.run(
        scripts.schedule_set(
            box.keys, name, options.get("definition", b"definition"),
            options.get("timing", "60000|||7"), next_ms, options.get("due_ms", next_ms + 7),
            options.get("most", 100), options.get("generation", b"0"),
        )
    )  # fmt: skip


def row(box: Box, name: str = "report") -> ScheduleRow:
    """The schedule as it is stored."""
    (found,) = box.run(scripts.schedules(box.keys, name)).rows
    return found


def fields(next_ms: int, revision: int = 1, name: str = "report", **others: Any) -> dict[Any, Any]:
    """The fields of a schedule, as a dump shows them."""
    values = {
        "definition": b"definition", "timing": b"60000|||7", "revision": b"%d" % revision,
        "next": b"%d" % next_ms, **others,
    }  # fmt: skip
    return {("schedules", f"{name}:{field}".encode()): value for field, value in values.items()}
