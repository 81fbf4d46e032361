"""The types of answers, and the functions that make them of what Admin returns, by matter.

Here stand those that the operations and the console name; parts of answers stay in their modules.
"""

from rmq.server.http.api.views.about import (
    About,
    ServiceList,
    WorkerList,
)
from rmq.server.http.api.views.answer import (
    Count,
    Done,
    etag_of,
)
from rmq.server.http.api.views.audits import (
    Audited,
    AuditTrail,
    Findings,
    audit_line_of,
    audited_of,
    findings_of,
)
from rmq.server.http.api.views.dead_letters import (
    DeadLetterGroups,
    DeadLetterLine,
    Imported,
    Purged,
    Redriven,
    Restored,
    groups_of,
    line_of,
)
from rmq.server.http.api.views.jobs import (
    Job,
    JobList,
    JobOutcomes,
    job_of,
    outcome_of,
)
from rmq.server.http.api.views.leases import (
    Consumers,
    LeaseList,
    leases_of,
)
from rmq.server.http.api.views.messages import (
    DECODED_MAX,
    HIDDEN,
    SHOWN_MAX,
    Attempt,
    Body,
    Cancelled,
    Failure,
    MessageList,
    Peeked,
    Prioritized,
    Rescheduled,
    Sent,
    StoredMessage,
    body_of,
    message_of,
    sent_of,
)
from rmq.server.http.api.views.queries import (
    Claim,
    QueryList,
    SinkList,
)
from rmq.server.http.api.views.schedules import (
    Schedule,
    ScheduleList,
    schedule_of,
)
from rmq.server.http.api.views.topics import (
    Deleted,
    DueCount,
    DueCounts,
    History,
    Paused,
    Resized,
    Resumed,
    SlotStats,
    Stats,
    Topic,
    TopicList,
    paused_of,
    topic_of,
)

__all__ = [
    "DECODED_MAX", "HIDDEN", "SHOWN_MAX", "About", "Attempt", "AuditTrail", "Audited", "Body",
    "Cancelled", "Claim", "Consumers", "Count", "DeadLetterGroups", "DeadLetterLine", "Deleted",
    "Done", "DueCount", "DueCounts", "Failure", "Findings", "History", "Imported", "Job",
    "JobList", "JobOutcomes", "LeaseList", "MessageList", "Paused", "Peeked", "Prioritized",
    "Purged", "QueryList", "Redriven", "Rescheduled", "Resized", "Restored", "Resumed",
    "Schedule", "ScheduleList", "Sent", "ServiceList", "SinkList", "SlotStats", "Stats",
    "StoredMessage", "Topic", "TopicList", "WorkerList", "audit_line_of", "audited_of",
    "body_of", "etag_of", "findings_of", "groups_of", "job_of", "leases_of", "line_of",
    "message_of", "outcome_of", "paused_of", "schedule_of", "sent_of", "topic_of",
]  # fmt: skip
