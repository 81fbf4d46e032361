# Generated from rmq/client/admin.py: change that, then run `make fmt`.
"""The blocking classes of `rmq.client.admin`."""

from __future__ import annotations

from rmq.features.audit.admin_blocking import AuditAdmin
from rmq.features.batches.admin_blocking import BatchAdmin
from rmq.features.claims.admin_blocking import ClaimAdmin
from rmq.features.dead_letters.admin_blocking import DeadLetterAdmin
from rmq.features.dead_letters.jobs.admin_blocking import JobAdmin
from rmq.features.doctor.admin_blocking import DoctorAdmin
from rmq.features.follow_ups.admin_blocking import FollowUpAdmin
from rmq.features.groups.admin_blocking import GroupAdmin
from rmq.features.messages.admin_blocking import MessageAdmin
from rmq.features.offloaded.admin_blocking import OffloadedAdmin
from rmq.features.schedules.admin_blocking import ScheduleAdmin
from rmq.features.spark.admin_blocking import QueryAdmin
from rmq.features.tokens.admin_blocking import TokenAdmin
from rmq.features.topic_admin.admin_blocking import TopicAdmin
from rmq.features.workers.admin_blocking import WorkerAdmin


class Admin(
    TopicAdmin,
    MessageAdmin,
    GroupAdmin,
    FollowUpAdmin,
    BatchAdmin,
    DeadLetterAdmin,
    JobAdmin,
    AuditAdmin,
    ClaimAdmin,
    OffloadedAdmin,
    QueryAdmin,
    ScheduleAdmin,
    WorkerAdmin,
    TokenAdmin,
    DoctorAdmin,
):
    """Administrative operations. Each operation names its topic, which must exist."""
