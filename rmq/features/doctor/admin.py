"""The doctor: check Redis and all topics."""

from __future__ import annotations

from collections.abc import Iterable

from rmq.features.doctor import flows
from rmq.features.doctor.look import Finding
from rmq.kernel.topic.admin_part import AsyncAdminPart


class AsyncDoctorAdmin(AsyncAdminPart):
    """The operation that checks a Redis and all its topics."""

    async def doctor(self, only: Iterable[str] | None = None) -> list[Finding]:
        """Check Redis and all topics, and change nothing. Return the findings, most serious first.

        `rmq doctor` and the page "Problems" of the console show the first ten of these findings
        that are warnings or errors. If this Redis user lacks a right that a check needs, the result
        of the check is "skipped", with the reason.

        Args:
            only: Names of the checks to make, as `rmq doctor --list` shows them. Default: all
                checks.

        Raises:
            InvalidValue: A name is not the name of a check.
        """
        return await self._run(flows.examine(self._prefix, only))
