"""A builder for each script: values become keys and arguments, the reply becomes a typed value.

Builders take values that were checked already; scripts check numbers again before they write.
"""

from __future__ import annotations

from rmq.protocol.clock import now_ms as now_ms, set_clock as set_clock
from rmq.protocol.commands.audit import (
    AuditOpenPage as AuditOpenPage,
    AuditScanPage as AuditScanPage,
    audit_open as audit_open,
    audit_report as audit_report,
    audit_scan as audit_scan,
)
from rmq.protocol.commands.claim import (
    claim as claim,
    finish as finish,
    renew as renew,
    unclaim as unclaim,
)
from rmq.protocol.commands.dead_letters import (
    ExpireReply as ExpireReply,
    TidyReply as TidyReply,
    expire as expire,
    purge as purge,
    redrive as redrive,
    restore as restore,
    tidy as tidy,
    trash as trash,
)
from rmq.protocol.commands.inspect import (
    STATS as STATS,
    LocateReply as LocateReply,
    QueueMember as QueueMember,
    SlotCounts as SlotCounts,
    due_counts as due_counts,
    get as get,
    locate as locate,
    peek as peek,
    stats as stats,
    stats_and_lateness as stats_and_lateness,
)
from rmq.protocol.commands.jobs import (
    JobReply as JobReply,
    JobStepReply as JobStepReply,
    JobTaken as JobTaken,
    job_pause as job_pause,
    job_resume as job_resume,
    job_start as job_start,
    job_step as job_step,
    job_stop as job_stop,
    job_take as job_take,
)
from rmq.protocol.commands.leader import (
    LeaderReply as LeaderReply,
    leader_release as leader_release,
    leader_renew as leader_renew,
)
from rmq.protocol.commands.leases import (
    lease_release as lease_release,
    lease_renew as lease_renew,
    lease_rollback as lease_rollback,
)
from rmq.protocol.commands.query import (
    QUERY_DEADLINE_S as QUERY_DEADLINE_S,
    QueryLease as QueryLease,
    QueryLog as QueryLog,
    QueryPage as QueryPage,
    QueryRollbackReply as QueryRollbackReply,
    QuerySettleReply as QuerySettleReply,
    QueryState as QueryState,
    check_run as check_run,
    queries as queries,
    query_again as query_again,
    query_inspect as query_inspect,
    query_read as query_read,
    query_reject as query_reject,
    query_renew as query_renew,
    query_rollback as query_rollback,
    query_settle as query_settle,
    query_take as query_take,
    rollback_failure as rollback_failure,
)
from rmq.protocol.commands.receive import (
    LEASES_EXPIRED as LEASES_EXPIRED,
    LONG_EXPIRED as LONG_EXPIRED,
    Batch as Batch,
    CreditState as CreditState,
    HandOver as HandOver,
    Offer as Offer,
    RollbackReply as RollbackReply,
    lateness_report as lateness_report,
    next_ready as next_ready,
    next_ready_or_credit as next_ready_or_credit,
    prepare as prepare,
    read_hand_over as read_hand_over,
    rollback as rollback,
    withdraw as withdraw,
)
from rmq.protocol.commands.recurring import (
    DueReply as DueReply,
    DueSchedule as DueSchedule,
    ScheduleRow as ScheduleRow,
    schedule_delete as schedule_delete,
    schedule_due as schedule_due,
    schedule_pause as schedule_pause,
    schedule_resume as schedule_resume,
    schedule_send as schedule_send,
    schedule_set as schedule_set,
    schedules as schedules,
)
from rmq.protocol.commands.redrive_to import (
    Arrival as Arrival,
    ArrivalReply as ArrivalReply,
    HeldLetter as HeldLetter,
    HoldReply as HoldReply,
    redrive_hold as redrive_hold,
    redrive_send as redrive_send,
    redrive_settle as redrive_settle,
)
from rmq.protocol.commands.schedule import (
    cancel as cancel,
    reschedule as reschedule,
    set_priority as set_priority,
)
from rmq.protocol.commands.send import (
    MergeReply as MergeReply,
    SendReply as SendReply,
    merge as merge,
    send as send,
    send_uniform as send_uniform,
)
from rmq.protocol.commands.settle import (
    ExtendReply as ExtendReply,
    ack as ack,
    extend as extend,
    nack as nack,
    reject as reject,
    release as release,
)
from rmq.protocol.commands.stage import (
    PublishReply as PublishReply,
    SinkReply as SinkReply,
    publish as publish,
    sink_begin as sink_begin,
    sink_end as sink_end,
    stage_keep as stage_keep,
    stage_push as stage_push,
)
from rmq.protocol.commands.topic import (
    ResizeScanReply as ResizeScanReply,
    SlotDeleteReply as SlotDeleteReply,
    TopicReply as TopicReply,
    resize_scan as resize_scan,
    sample as sample,
    slot as slot,
    slot_delete as slot_delete,
    topic as topic,
    topic_close as topic_close,
    topic_pause as topic_pause,
    topic_resize as topic_resize,
    topic_resume as topic_resume,
    topic_set as topic_set,
)
