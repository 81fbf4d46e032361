"""Combine the administrative operations of all features in one class.

`make fmt` writes the blocking class from this module.
"""

from __future__ import annotations

from rmq.features.audit.admin import AsyncAuditAdmin
from rmq.features.batches.admin import AsyncBatchAdmin
from rmq.features.claims.admin import AsyncClaimAdmin
from rmq.features.dead_letters.admin import AsyncDeadLetterAdmin
from rmq.features.dead_letters.jobs.admin import AsyncJobAdmin
from rmq.features.doctor.admin import AsyncDoctorAdmin
from rmq.features.follow_ups.admin import AsyncFollowUpAdmin
from rmq.features.groups.admin import AsyncGroupAdmin
from rmq.features.messages.admin import AsyncMessageAdmin
from rmq.features.offloaded.admin import AsyncOffloadedAdmin
from rmq.features.schedules.admin import AsyncScheduleAdmin
from rmq.features.spark.admin import AsyncQueryAdmin
from rmq.features.tokens.admin import AsyncTokenAdmin
from rmq.features.topic_admin.admin import AsyncTopicAdmin
from rmq.features.workers.admin import AsyncWorkerAdmin


class AsyncAdmin(
    AsyncTopicAdmin,
    AsyncMessageAdmin,
    AsyncGroupAdmin,
    AsyncFollowUpAdmin,
    AsyncBatchAdmin,
    AsyncDeadLetterAdmin,
    AsyncJobAdmin,
    AsyncAuditAdmin,
    AsyncClaimAdmin,
    AsyncOffloadedAdmin,
    AsyncQueryAdmin,
    AsyncScheduleAdmin,
    AsyncWorkerAdmin,
    AsyncTokenAdmin,
    AsyncDoctorAdmin,
):
    """Administrative operations. Each operation names its topic, which must exist."""
