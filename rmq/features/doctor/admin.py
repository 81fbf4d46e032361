"""The operations of `Admin` that check Redis and all topics."""

from __future__ import annotations

from collections.abc import Iterable

from rmq.features.doctor import flows
from rmq.features.doctor.look import Finding
from rmq.kernel.topic.admin_part import AsyncAdminPart


class AsyncDoctorAdmin(AsyncAdminPart):
    """Checks Redis and all topics."""

    async def doctor(self, only: Iterable[str] | None = None) -> list[Finding]:
        """Check Redis and all topics. Return the findings, most serious first. Change nothing.

        `rmq doctor` and the console page "Problems" show the first ten warnings and errors of this
        result. If this Redis user lacks a right that a check needs, the finding is "skipped" and
        gives the reason.

        Args:
            only: Names of the checks to run, as `rmq doctor --list` shows them. Default: all
                checks.

        Raises:
            InvalidValue: A name is not the name of a check.
        """
        return await self._run(flows.examine(self._prefix, only))
