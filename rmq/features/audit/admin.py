"""Audits of topics: lost messages by their audit numbers."""

from __future__ import annotations

from datetime import timedelta

from rmq.features.audit import flows as audit_flow
from rmq.features.audit.audit import AuditResult
from rmq.kernel.core.validation import duration_ms
from rmq.kernel.topic.verbs import AsyncAdminPart
from rmq.kernel.transport.flow.steps import Progress


class AsyncAuditAdmin(AsyncAdminPart):
    """Verbs on audits."""

    async def audit(
        self,
        topic: str,
        *,
        older_than: float | timedelta = 60.0,
        forget: bool = False,
        progress: Progress | None = None,
    ) -> AuditResult:
        """Report which messages of producers with `rmq.Audit` were lost.

        Args:
            topic: its name.
            older_than: only messages reported as accepted so long ago, seconds or timedelta.
            forget: account for missing messages, so that they are not reported again.
            progress: called with (messages looked at, messages there were) as it goes.

        Guarantee:
            A reported message is in no queue, and RMQ neither settled nor removed it. Producers,
            consumers and operators may continue meanwhile.
        """
        older_ms = duration_ms(older_than, "older_than", zero=True)
        context = self._context(topic)
        report = await self._run(audit_flow.audit(context, older_ms, forget, progress=progress))
        assert report is not None
        return report
