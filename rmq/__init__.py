"""RMQ: the message queue for people who already run Redis.

    import rmq

    client = rmq.Client("redis://localhost:6379/0")
    orders = client.topic("orders")
    orders.send({"id": 7}, priority=900)

    with orders.consumer() as consumer:
        for d in consumer.receive(max_messages=100, wait=5.0):
            with d:
                work(d.body)

The names in `__all__` are the public API. Other names may change without notice.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rmq.errors import (
    AccessDenied,
    AlreadySettled,
    BatchClosed,
    BatchNotFound,
    Cancelled,
    ClaimLost,
    ConfigurationError,
    DecodeError,
    DeliveryError,
    EmbeddedError,
    EncodeError,
    FormatMismatch,
    HistoryLost,
    InvalidFilter,
    InvalidKey,
    InvalidReceipt,
    InvalidType,
    InvalidValue,
    JobNotFound,
    LeaseLost,
    LifespanFailed,
    NotDurable,
    NotFinished,
    OutcomeUnknown,
    PayloadTooLarge,
    QueryOwned,
    QueueFull,
    ResultNotFound,
    RMQError,
    ScheduleNotFound,
    ScriptFailed,
    SendError,
    SettingsMismatch,
    StageLost,
    StorageError,
    StoreUnavailable,
    TopicNotEmpty,
    TopicNotFound,
    TopicPaused,
    TopicVanished,
    Unavailable,
    WorkRolledBack,
)
from rmq.kernel.core.packages import VERSION

if TYPE_CHECKING:
    from rmq.client.admin import AsyncAdmin
    from rmq.client.admin_blocking import Admin
    from rmq.client.client import AsyncClient
    from rmq.client.client_blocking import Client
    from rmq.client.topic import AsyncTopic
    from rmq.client.topic_blocking import Topic
    from rmq.features.audit.audit import Audit, AuditResult, Missing
    from rmq.features.batches.batch import AsyncBatch
    from rmq.features.batches.batch_blocking import Batch
    from rmq.features.batches.flows import BatchState
    from rmq.features.dead_letters.flows import RedriveResult
    from rmq.features.dead_letters.jobs.job import Job, JobOutcome
    from rmq.features.dead_letters.reading import DeadLetterGroup, DeadLetterGroups, DeadLetterPage
    from rmq.features.doctor.look import Finding
    from rmq.features.follow_ups.flows import PendingFollowUp
    from rmq.features.groups.flows import GroupPage
    from rmq.features.groups.scripts import GroupState
    from rmq.features.history.flows import AckedMessage, HistoryPage, HistoryState
    from rmq.features.history.history import AsyncTopicHistory
    from rmq.features.history.history_blocking import TopicHistory
    from rmq.features.messages.flows import PeekPage
    from rmq.features.offloaded.flows import SweepResult
    from rmq.features.schedules.declaration import AsyncSchedule
    from rmq.features.schedules.declaration_blocking import Schedule
    from rmq.features.schedules.flows import ScheduleState
    from rmq.features.spark.held import HeldQuery, Sink
    from rmq.features.spark.query import AsyncQuery
    from rmq.features.spark.query_blocking import Query
    from rmq.features.spark.stage import AsyncStage
    from rmq.features.spark.stage_blocking import Stage
    from rmq.features.spark.stage_flows import PublishResult, StageContent
    from rmq.features.topic_admin.flows import DeleteResult
    from rmq.features.topic_admin.resize import ResizeResult
    from rmq.features.workers.status import HandlerRun, HandlerStatus, WorkerStatus
    from rmq.features.workers.wanted import WorkersWanted
    from rmq.kernel.batches.ref import BatchCounts
    from rmq.kernel.consumer.consumer import AsyncConsumer
    from rmq.kernel.consumer.consumer_blocking import Consumer
    from rmq.kernel.core.access import AccessToken
    from rmq.kernel.core.codec import Compressed, Encrypted, Offloaded
    from rmq.kernel.core.delivery_limits import Concurrency, Rate
    from rmq.kernel.core.failure import Attempt, Failure
    from rmq.kernel.core.groups import Groups
    from rmq.kernel.core.history import Sample
    from rmq.kernel.core.history_limits import History
    from rmq.kernel.core.ids import MessageId
    from rmq.kernel.core.interceptor import Interceptor, Outcome
    from rmq.kernel.core.message import Message, Outgoing, Receipt, SendResult
    from rmq.kernel.core.pause import Pause
    from rmq.kernel.core.results import Results
    from rmq.kernel.core.retry import Exponential, Immediate, Levels
    from rmq.kernel.core.settings import Fsync, Replicated, Settings, TopicSettings
    from rmq.kernel.core.steps import Event, Step
    from rmq.kernel.delivery.claim import ClaimStatus
    from rmq.kernel.delivery.delivery import AsyncDelivery
    from rmq.kernel.delivery.delivery_blocking import Delivery
    from rmq.kernel.delivery.dispositions import Reject, Retry, Snooze, Then, WaitFor
    from rmq.kernel.events.flows import SignalResult
    from rmq.kernel.handlers.dependencies import Depends
    from rmq.kernel.handlers.idempotency import Claims, idempotent
    from rmq.kernel.results.completion import as_completed
    from rmq.kernel.results.handle import AsyncResultHandle
    from rmq.kernel.results.handle_blocking import ResultHandle
    from rmq.kernel.results.outcome import MessageOutcome, Progress, ResultState
    from rmq.kernel.topic.audit_trail import AuditLine
    from rmq.kernel.topic.filter import DeadLetterFilter
    from rmq.kernel.topic.paging import Page, Span
    from rmq.kernel.topic.stats import DueCount
    from rmq.kernel.transport.acl import AclRules, acl_rules
    from rmq.worker import Health, Scheduler, Worker


__version__ = VERSION

# The modules of the public names. A module is imported when one of its names is first used, so that
# `rmq --help` does not wait for redis. The imports above are for type checkers;
# tests/unit/test_lazy_names.py compares both.
_MODULES = {
    "rmq.client.admin": "AsyncAdmin",
    "rmq.client.admin_blocking": "Admin",
    "rmq.client.client": "AsyncClient",
    "rmq.client.client_blocking": "Client",
    "rmq.client.topic": "AsyncTopic",
    "rmq.client.topic_blocking": "Topic",
    "rmq.features.audit.audit": "Audit AuditResult Missing",
    "rmq.kernel.topic.filter": "DeadLetterFilter",
    "rmq.features.dead_letters.flows": "RedriveResult",
    "rmq.features.dead_letters.jobs.job": "Job JobOutcome",
    "rmq.features.dead_letters.reading": "DeadLetterGroup DeadLetterGroups DeadLetterPage",
    "rmq.features.doctor.look": "Finding",
    "rmq.features.follow_ups.flows": "PendingFollowUp",
    "rmq.features.groups.flows": "GroupPage",
    "rmq.features.groups.scripts": "GroupState",
    "rmq.features.messages.flows": "PeekPage",
    "rmq.features.spark.held": "HeldQuery Sink",
    "rmq.features.offloaded.flows": "SweepResult",
    "rmq.features.spark.query": "AsyncQuery",
    "rmq.features.spark.query_blocking": "Query",
    "rmq.features.spark.stage": "AsyncStage",
    "rmq.features.spark.stage_blocking": "Stage",
    "rmq.features.schedules.declaration": "AsyncSchedule",
    "rmq.features.schedules.declaration_blocking": "Schedule",
    "rmq.features.schedules.flows": "ScheduleState",
    "rmq.features.topic_admin.flows": "DeleteResult",
    "rmq.features.topic_admin.resize": "ResizeResult",
    "rmq.features.workers.status": "HandlerRun HandlerStatus WorkerStatus",
    "rmq.features.history.flows": "AckedMessage HistoryPage HistoryState",
    "rmq.features.history.history": "AsyncTopicHistory",
    "rmq.features.history.history_blocking": "TopicHistory",
    "rmq.features.workers.wanted": "WorkersWanted",
    "rmq.features.batches.batch": "AsyncBatch",
    "rmq.features.batches.batch_blocking": "Batch",
    "rmq.features.batches.flows": "BatchState",
    "rmq.kernel.batches.ref": "BatchCounts",
    "rmq.kernel.consumer.consumer": "AsyncConsumer",
    "rmq.kernel.consumer.consumer_blocking": "Consumer",
    "rmq.kernel.core.access": "AccessToken",
    "rmq.kernel.core.codec": "Compressed Encrypted Offloaded",
    "rmq.kernel.core.failure": "Attempt Failure",
    "rmq.kernel.core.history": "Sample",
    "rmq.kernel.core.history_limits": "History",
    "rmq.kernel.core.ids": "MessageId",
    "rmq.kernel.core.interceptor": "Interceptor Outcome",
    "rmq.kernel.core.delivery_limits": "Concurrency Rate",
    "rmq.kernel.core.message": "Message Outgoing Receipt SendResult",
    "rmq.kernel.core.pause": "Pause",
    "rmq.kernel.core.results": "Results",
    "rmq.kernel.core.retry": "Exponential Immediate Levels",
    "rmq.kernel.core.groups": "Groups",
    "rmq.kernel.core.settings": "Fsync Replicated Settings TopicSettings",
    "rmq.kernel.core.steps": "Event Step",
    "rmq.kernel.delivery.claim": "ClaimStatus",
    "rmq.kernel.delivery.delivery": "AsyncDelivery",
    "rmq.kernel.delivery.delivery_blocking": "Delivery",
    "rmq.kernel.delivery.dispositions": "Reject Retry Snooze Then WaitFor",
    "rmq.kernel.events.flows": "SignalResult",
    "rmq.kernel.handlers.dependencies": "Depends",
    "rmq.kernel.handlers.idempotency": "Claims idempotent",
    "rmq.features.spark.stage_flows": "PublishResult StageContent",
    "rmq.kernel.results.completion": "as_completed",
    "rmq.kernel.results.handle": "AsyncResultHandle",
    "rmq.kernel.results.handle_blocking": "ResultHandle",
    "rmq.kernel.results.outcome": "MessageOutcome Progress ResultState",
    "rmq.kernel.topic.audit_trail": "AuditLine",
    "rmq.kernel.topic.paging": "Page Span",
    "rmq.kernel.topic.stats": "DueCount",
    "rmq.kernel.transport.acl": "AclRules acl_rules",
    "rmq.worker": "Health Scheduler Worker",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}
_PACKAGES = ("client", "errors", "features", "kernel", "worker")

if not TYPE_CHECKING:  # without this condition, type checkers would accept every name

    def __getattr__(name: str) -> Any:
        if name in _MODULE_OF:
            value = getattr(importlib.import_module(_MODULE_OF[name]), name)
            globals()[name] = value
            return value
        if name in _PACKAGES:
            return importlib.import_module(f"rmq.{name}")
        raise AttributeError(f"module 'rmq' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


__all__ = [
    "AccessDenied", "AccessToken", "AckedMessage", "AclRules", "Admin", "AlreadySettled",
    "AsyncAdmin", "AsyncBatch", "AsyncClient", "AsyncConsumer", "AsyncDelivery", "AsyncQuery",
    "AsyncResultHandle", "AsyncSchedule", "AsyncStage", "AsyncTopic", "AsyncTopicHistory",
    "Attempt", "Audit", "AuditLine", "AuditResult", "Batch", "BatchClosed", "BatchCounts",
    "BatchNotFound", "BatchState", "Cancelled", "ClaimLost", "ClaimStatus", "Claims", "Client",
    "Compressed", "Concurrency", "ConfigurationError", "Consumer", "DeadLetterFilter",
    "DeadLetterGroup", "DeadLetterGroups", "DeadLetterPage", "DecodeError", "DeleteResult",
    "Delivery", "DeliveryError", "Depends", "DueCount", "EmbeddedError", "EncodeError", "Encrypted",
    "Event", "Exponential", "Failure", "Finding", "FormatMismatch", "Fsync", "GroupPage",
    "GroupState", "Groups", "HandlerRun", "HandlerStatus", "Health", "HeldQuery", "History",
    "HistoryLost", "HistoryPage", "HistoryState", "Immediate", "Interceptor", "InvalidFilter",
    "InvalidKey", "InvalidReceipt", "InvalidType", "InvalidValue", "Job", "JobNotFound",
    "JobOutcome", "LeaseLost", "Levels", "LifespanFailed", "Message", "MessageId", "MessageOutcome",
    "Missing", "NotDurable", "NotFinished", "Offloaded", "Outcome", "OutcomeUnknown", "Outgoing",
    "Page", "Pause", "PayloadTooLarge", "PeekPage", "PendingFollowUp", "Progress", "PublishResult",
    "Query", "QueryOwned", "QueueFull", "RMQError", "Rate", "Receipt", "RedriveResult", "Reject",
    "Replicated", "ResizeResult", "ResultHandle", "ResultNotFound", "ResultState", "Results",
    "Retry", "Sample", "Schedule", "ScheduleNotFound", "ScheduleState", "Scheduler", "ScriptFailed",
    "SendError", "SendResult", "Settings", "SettingsMismatch", "SignalResult", "Sink", "Snooze",
    "Span", "Stage", "StageContent", "StageLost", "Step", "StorageError", "StoreUnavailable",
    "SweepResult", "Then", "Topic", "TopicHistory", "TopicNotEmpty", "TopicNotFound", "TopicPaused",
    "TopicSettings", "TopicVanished", "Unavailable", "WaitFor", "WorkRolledBack", "Worker",
    "WorkerStatus", "WorkersWanted", "acl_rules", "as_completed", "idempotent",
]  # fmt: skip
