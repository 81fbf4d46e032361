"""Accounts of work: lost messages by their audit numbers, claims on business keys."""

from __future__ import annotations

from datetime import timedelta

from rmq.client.admin.part import AdminPart, AsyncAdminPart
from rmq.core.audit import Audited
from rmq.core.claim import Claimed
from rmq.core.validation import duration_ms
from rmq.protocol.flows import (
    audit as audit_flow,
    claim_admin,
)
from rmq.protocol.steps import Progress


class AccountAdmin(AdminPart):
    """Verbs on audits and claims."""

    def audit(
        self,
        topic: str,
        *,
        older_than: float | timedelta = 60.0,
        forget: bool = False,
        progress: Progress | None = None,
    ) -> Audited:
        """Report which messages of producers with `rmq.Audit` were lost.

        Args:
            topic: its name.
            older_than: only messages reported as accepted so long ago, seconds or timedelta.
            forget: account for missing messages, so that they are not reported again.
            progress: called with (messages looked at, messages there were) as it goes.

        Guarantee:
            A reported message is in no queue, and RMQ neither settled nor removed it. Producers,
            consumers and operators may go on meanwhile.
        """
        older_ms = duration_ms(older_than, "older_than", zero=True)
        context = self._context(topic)
        report = self._run(audit_flow.audit(context, older_ms, forget, progress=progress))
        assert report is not None
        return report

    def claim(self, topic: str, key: str, *, consumer: str = "default") -> Claimed | None:
        """Return the claim on a business key (`rmq.Claims`); None if there is none.

        Args:
            topic: its name.
            key: as the handler's `key` gives it, as text.
            consumer: as the handler's `rmq.Claims` names it.
        """
        context = self._context(topic)
        return self._run(claim_admin.claim(context, key, consumer))

    def unclaim(self, topic: str, key: str, *, consumer: str = "default") -> bool:
        """Delete the claim on a business key, whatever its state; return whether there was one.

        The next message of this key is worked on, even if the work was done before.
        """
        context = self._context(topic)
        return self._run(claim_admin.unclaim(context, key, consumer))


class AsyncAccountAdmin(AsyncAdminPart):
    """As `AccountAdmin`, for asyncio."""

    async def audit(
        self,
        topic: str,
        *,
        older_than: float | timedelta = 60.0,
        forget: bool = False,
        progress: Progress | None = None,
    ) -> Audited:
        """As `Admin.audit`."""
        older_ms = duration_ms(older_than, "older_than", zero=True)
        context = self._context(topic)
        report = await self._run(audit_flow.audit(context, older_ms, forget, progress=progress))
        assert report is not None
        return report

    async def claim(self, topic: str, key: str, *, consumer: str = "default") -> Claimed | None:
        """As `Admin.claim`."""
        context = self._context(topic)
        return await self._run(claim_admin.claim(context, key, consumer))

    async def unclaim(self, topic: str, key: str, *, consumer: str = "default") -> bool:
        """As `Admin.unclaim`."""
        context = self._context(topic)
        return await self._run(claim_admin.unclaim(context, key, consumer))
