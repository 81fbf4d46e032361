"""RMQ: the message queue for people who already run Redis.

    import rmq

    client = rmq.Client("redis://localhost:6379/0")
    orders = client.topic("orders")
    orders.send({"id": 7}, priority=900)

    with orders.consumer() as consumer:
        for d in consumer.receive(max_messages=100, wait=5.0):
            with d:
                work(d.body)

The names in `__all__` are the public API; other names may change without notice.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rmq.core.version import VERSION

if TYPE_CHECKING:
    from rmq.client.admin import Admin, AsyncAdmin
    from rmq.client.client import AsyncClient, Client
    from rmq.client.consumer import AsyncConsumer, AsyncDelivery, Consumer, Delivery
    from rmq.client.declaration import AsyncSchedule, Schedule
    from rmq.client.dependencies import Depends
    from rmq.client.idempotency import Claims, idempotent
    from rmq.client.query import AsyncQuery, Query
    from rmq.client.stage import AsyncStage, Published, Stage, Staged
    from rmq.client.topic import AsyncTopic, Topic
    from rmq.core.access import AccessToken
    from rmq.core.audit import Audit, Audited, Missing
    from rmq.core.claim import Claimed
    from rmq.core.codec import Compressed
    from rmq.core.dead_letter_filter import DeadLetterFilter
    from rmq.core.delivery import Reject, Retry, Snooze
    from rmq.core.due_counts import DueCount
    from rmq.core.failure import Attempt, Failure
    from rmq.core.finding import Finding
    from rmq.core.function_library import FunctionLibrary
    from rmq.core.history import Sample
    from rmq.core.ids import MessageId
    from rmq.core.interceptor import Interceptor, Outcome
    from rmq.core.job import AuditLine, Job, JobOutcome
    from rmq.core.limits import Concurrency, Rate
    from rmq.core.message import Message, Outgoing, Receipt, SendResult
    from rmq.core.pause import Pause
    from rmq.core.retry import Exponential, Immediate, Levels
    from rmq.core.settings import Fsync, Replicated, Settings, TopicSettings
    from rmq.core.worker_status import HandlerRun, HandlerStatus, WorkerStatus
    from rmq.errors import (
        AccessDenied,
        AlreadySettled,
        ClaimLost,
        ConfigurationError,
        DecodeError,
        DeliveryError,
        EmbeddedError,
        EncodeError,
        FormatMismatch,
        InvalidFilter,
        InvalidKey,
        InvalidReceipt,
        InvalidType,
        InvalidValue,
        JobNotFound,
        LeaseLost,
        LifespanFailed,
        NotDurable,
        OutcomeUnknown,
        PayloadTooLarge,
        QueryOwned,
        QueueFull,
        RMQError,
        ScheduleNotFound,
        ScriptFailed,
        SendError,
        SettingsMismatch,
        StageLost,
        StorageError,
        TopicNotEmpty,
        TopicNotFound,
        TopicPaused,
        TopicVanished,
        Unavailable,
        WorkRolledBack,
    )
    from rmq.protocol.acl import AclRules, acl_rules
    from rmq.protocol.flows.dead_letter_groups import DeadLetterGroup, DeadLetterGroups
    from rmq.protocol.flows.dead_letter_pages import DeadLetterPage
    from rmq.protocol.flows.dead_letters import Redriven
    from rmq.protocol.flows.pages import Page, Span
    from rmq.protocol.flows.peek_pages import PeekPage
    from rmq.protocol.flows.query_admin import HeldQuery, Sink
    from rmq.protocol.flows.recurring import ScheduleState
    from rmq.protocol.flows.resize import Resized
    from rmq.protocol.flows.topic_admin import Deleted
    from rmq.worker import Health, Scheduler, Worker

__version__ = VERSION

# Where the public names are. A module is imported when one of its names is first used, so that
# `rmq --help` does not wait for redis. tests/unit/test_lazy_names.py compares this with the
# imports above, which are for type checkers.
_MODULES = {
    "rmq.client.admin": "Admin AsyncAdmin",
    "rmq.client.client": "AsyncClient Client",
    "rmq.client.consumer": "AsyncConsumer AsyncDelivery Consumer Delivery",
    "rmq.client.declaration": "AsyncSchedule Schedule",
    "rmq.client.dependencies": "Depends",
    "rmq.client.idempotency": "Claims idempotent",
    "rmq.client.query": "AsyncQuery Query",
    "rmq.client.stage": "AsyncStage Published Stage Staged",
    "rmq.client.topic": "AsyncTopic Topic",
    "rmq.core.access": "AccessToken",
    "rmq.core.audit": "Audit Audited Missing",
    "rmq.core.claim": "Claimed",
    "rmq.core.codec": "Compressed",
    "rmq.core.dead_letter_filter": "DeadLetterFilter",
    "rmq.core.delivery": "Reject Retry Snooze",
    "rmq.core.due_counts": "DueCount",
    "rmq.core.failure": "Attempt Failure",
    "rmq.core.finding": "Finding",
    "rmq.core.function_library": "FunctionLibrary",
    "rmq.core.history": "Sample",
    "rmq.core.ids": "MessageId",
    "rmq.core.interceptor": "Interceptor Outcome",
    "rmq.core.job": "AuditLine Job JobOutcome",
    "rmq.core.limits": "Concurrency Rate",
    "rmq.core.message": "Message Outgoing Receipt SendResult",
    "rmq.core.pause": "Pause",
    "rmq.core.retry": "Exponential Immediate Levels",
    "rmq.core.settings": "Fsync Replicated Settings TopicSettings",
    "rmq.core.worker_status": "HandlerRun HandlerStatus WorkerStatus",
    "rmq.errors": (
        "AccessDenied AlreadySettled ClaimLost ConfigurationError DecodeError DeliveryError "
        "EmbeddedError EncodeError FormatMismatch InvalidFilter InvalidKey InvalidReceipt "
        "InvalidType InvalidValue JobNotFound LeaseLost LifespanFailed NotDurable OutcomeUnknown "
        "PayloadTooLarge QueryOwned QueueFull RMQError ScheduleNotFound ScriptFailed SendError "
        "SettingsMismatch StageLost StorageError TopicNotEmpty TopicNotFound TopicPaused "
        "TopicVanished Unavailable WorkRolledBack"
    ),
    "rmq.protocol.acl": "AclRules acl_rules",
    "rmq.protocol.flows.dead_letter_groups": "DeadLetterGroup DeadLetterGroups",
    "rmq.protocol.flows.dead_letter_pages": "DeadLetterPage",
    "rmq.protocol.flows.dead_letters": "Redriven",
    "rmq.protocol.flows.pages": "Page Span",
    "rmq.protocol.flows.peek_pages": "PeekPage",
    "rmq.protocol.flows.query_admin": "HeldQuery Sink",
    "rmq.protocol.flows.recurring": "ScheduleState",
    "rmq.protocol.flows.resize": "Resized",
    "rmq.protocol.flows.topic_admin": "Deleted",
    "rmq.worker": "Health Scheduler Worker",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}
_PACKAGES = ("client", "core", "errors", "protocol", "transport", "worker")

if not TYPE_CHECKING:  # or every name would be right to a type checker

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
    # the doors
    "AccessDenied",
    "AccessToken",
    "AclRules",
    "Admin",
    "AlreadySettled",
    "AsyncAdmin",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncDelivery",
    "AsyncQuery",
    "AsyncSchedule",
    "AsyncStage",
    "AsyncTopic",
    "Attempt",
    "Audit",
    "AuditLine",
    "Audited",
    "ClaimLost",
    "Claimed",
    "Claims",
    "Client",
    "Compressed",
    "Concurrency",
    "ConfigurationError",
    "Consumer",
    "DeadLetterFilter",
    "DeadLetterGroup",
    "DeadLetterGroups",
    "DeadLetterPage",
    "DecodeError",
    "Deleted",
    "Delivery",
    "DeliveryError",
    "Depends",
    "DueCount",
    "EmbeddedError",
    "EncodeError",
    "Exponential",
    "Failure",
    "Finding",
    "FormatMismatch",
    "Fsync",
    "FunctionLibrary",
    "HandlerRun",
    "HandlerStatus",
    "Health",
    "HeldQuery",
    "Immediate",
    "Interceptor",
    "InvalidFilter",
    "InvalidKey",
    "InvalidReceipt",
    "InvalidType",
    "InvalidValue",
    "Job",
    "JobNotFound",
    "JobOutcome",
    "LeaseLost",
    "Levels",
    "LifespanFailed",
    "Message",
    "MessageId",
    "Missing",
    "NotDurable",
    "Outcome",
    "OutcomeUnknown",
    "Outgoing",
    "Page",
    "Pause",
    "PayloadTooLarge",
    "PeekPage",
    "Published",
    "Query",
    "QueryOwned",
    "QueueFull",
    "RMQError",
    "Rate",
    "Receipt",
    "Redriven",
    "Reject",
    "Replicated",
    "Resized",
    "Retry",
    "Sample",
    "Schedule",
    "ScheduleNotFound",
    "ScheduleState",
    "Scheduler",
    "ScriptFailed",
    "SendError",
    "SendResult",
    "Settings",
    "SettingsMismatch",
    "Sink",
    "Snooze",
    "Span",
    "Stage",
    "StageLost",
    "Staged",
    "StorageError",
    "Topic",
    "TopicNotEmpty",
    "TopicNotFound",
    "TopicPaused",
    "TopicSettings",
    "TopicVanished",
    "Unavailable",
    "WorkRolledBack",
    "Worker",
    "WorkerStatus",
    "acl_rules",
    "idempotent",
]
