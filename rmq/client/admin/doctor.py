"""The doctor: checks of Redis and of all topics."""

from __future__ import annotations

from collections.abc import Iterable

from rmq.client.admin.part import AdminPart, AsyncAdminPart
from rmq.core.finding import Finding
from rmq.protocol.flows import doctor


class DoctorAdmin(AdminPart):
    """Verbs on all of RMQ in a Redis."""

    def doctor(self, only: Iterable[str] | None = None) -> list[Finding]:
        """Check Redis and all topics, and change nothing; return the findings, check by check.

        A check that this Redis user may not make gives a finding "skipped" with the reason.

        Args:
            only: names of checks, as `rmq doctor --list` shows them; None: all.

        Raises:
            InvalidValue: there is no such check.
        """
        return self._run(doctor.examine(self._prefix, only))


class AsyncDoctorAdmin(AsyncAdminPart):
    """As `DoctorAdmin`, for asyncio."""

    async def doctor(self, only: Iterable[str] | None = None) -> list[Finding]:
        """As `Admin.doctor`."""
        return await self._run(doctor.examine(self._prefix, only))
