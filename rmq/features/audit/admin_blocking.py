# Generated from rmq/features/audit/admin.py: change that, then run `make fmt`.
"""The blocking classes of `rmq.features.audit.admin`."""

from __future__ import annotations

from datetime import timedelta

from rmq.features.audit import flows as audit_flow
from rmq.features.audit.audit import AuditResult
from rmq.kernel.core.validation import duration_ms
from rmq.kernel.topic.admin_part import AdminPart
from rmq.kernel.transport.flow.steps import Progress


class AuditAdmin(AdminPart):
    """Finds lost messages."""

    def audit(
        self,
        topic: str,
        *,
        older_than: float | timedelta = 60.0,
        forget: bool = False,
        progress: Progress | None = None,
    ) -> AuditResult:
        """Report lost messages of producers that use `rmq.Audit`.

        Args:
            topic: Name of the topic.
            older_than: Minimum time since a message was reported as accepted, in seconds or as a
                timedelta.
            forget: Whether to forget missing messages afterwards, so that no later audit reports
                them.
            progress: Function that RMQ calls as `progress(examined, all)` during the audit, with
                two numbers of messages.

        Guarantee:
            A reported message is in no queue, and RMQ has neither settled nor removed the message.
            Producers, consumers and operators may continue during the audit.
        """
        older_ms = duration_ms(older_than, "older_than", zero=True)
        context = self._context(topic)
        report = self._run(audit_flow.audit(context, older_ms, forget, progress=progress))
        assert report is not None
        return report
