"""Admin: operate topics, in parts along the verbs. Sync and async side by side in each part."""

from __future__ import annotations

from rmq.features.audit.admin import AsyncAuditAdmin
from rmq.features.audit.admin_blocking import AuditAdmin
from rmq.features.claims.admin import AsyncClaimAdmin
from rmq.features.claims.admin_blocking import ClaimAdmin
from rmq.features.dead_letters.admin import AsyncDeadLetterAdmin
from rmq.features.dead_letters.admin_blocking import DeadLetterAdmin
from rmq.features.dead_letters.jobs.admin import AsyncJobAdmin
from rmq.features.dead_letters.jobs.admin_blocking import JobAdmin
from rmq.features.doctor.admin import AsyncDoctorAdmin
from rmq.features.doctor.admin_blocking import DoctorAdmin
from rmq.features.messages.admin import AsyncMessageAdmin
from rmq.features.messages.admin_blocking import MessageAdmin
from rmq.features.queries.admin import AsyncQueryAdmin
from rmq.features.queries.admin_blocking import QueryAdmin
from rmq.features.schedules.admin import AsyncScheduleAdmin
from rmq.features.schedules.admin_blocking import ScheduleAdmin
from rmq.features.tokens.admin import AsyncTokenAdmin
from rmq.features.tokens.admin_blocking import TokenAdmin
from rmq.features.topic_admin.admin import AsyncTopicAdmin
from rmq.features.topic_admin.admin_blocking import TopicAdmin
from rmq.features.workers.admin import AsyncWorkerAdmin
from rmq.features.workers.admin_blocking import WorkerAdmin

__all__ = ["Admin", "AsyncAdmin"]


class Admin(
    TopicAdmin,
    MessageAdmin,
    DeadLetterAdmin,
    JobAdmin,
    AuditAdmin,
    ClaimAdmin,
    QueryAdmin,
    ScheduleAdmin,
    WorkerAdmin,
    TokenAdmin,
    DoctorAdmin,
):
    """Operates the topics of a client. A verb on a topic names it, and it must exist."""


class AsyncAdmin(
    AsyncTopicAdmin,
    AsyncMessageAdmin,
    AsyncDeadLetterAdmin,
    AsyncJobAdmin,
    AsyncAuditAdmin,
    AsyncClaimAdmin,
    AsyncQueryAdmin,
    AsyncScheduleAdmin,
    AsyncWorkerAdmin,
    AsyncTokenAdmin,
    AsyncDoctorAdmin,
):
    """Operates the topics of an async client. The methods are those of `Admin`."""
