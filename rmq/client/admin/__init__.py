"""Admin: operate topics, in parts along the verbs. Sync and async side by side in each part."""

from __future__ import annotations

from rmq.client.admin.audits import AsyncAuditAdmin, AuditAdmin
from rmq.client.admin.claims import AsyncClaimAdmin, ClaimAdmin
from rmq.client.admin.dead_letters import AsyncDeadLetterAdmin, DeadLetterAdmin
from rmq.client.admin.doctor import AsyncDoctorAdmin, DoctorAdmin
from rmq.client.admin.functions import AsyncFunctionAdmin, FunctionAdmin
from rmq.client.admin.jobs import AsyncJobAdmin, JobAdmin
from rmq.client.admin.messages import AsyncMessageAdmin, MessageAdmin
from rmq.client.admin.queries import AsyncQueryAdmin, QueryAdmin
from rmq.client.admin.schedules import AsyncScheduleAdmin, ScheduleAdmin
from rmq.client.admin.tokens import AsyncTokenAdmin, TokenAdmin
from rmq.client.admin.topics import AsyncTopicAdmin, TopicAdmin
from rmq.client.admin.workers import AsyncWorkerAdmin, WorkerAdmin

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
    FunctionAdmin,
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
    AsyncFunctionAdmin,
    AsyncDoctorAdmin,
):
    """Operates the topics of an async client. The methods are those of `Admin`."""
