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

from rmq.client.admin import Admin, AsyncAdmin
from rmq.client.client import AsyncClient, Client
from rmq.client.consumer import AsyncConsumer, AsyncDelivery, Consumer, Delivery
from rmq.client.declaration import AsyncSchedule, Schedule
from rmq.client.dependencies import Depends
from rmq.client.idempotency import Claims, idempotent
from rmq.client.query import AsyncQuery, Query
from rmq.client.stage import AsyncStage, Published, Stage, Staged
from rmq.client.topic import AsyncTopic, Topic
from rmq.core.audit import Audit, Audited, Missing
from rmq.core.claim import Claimed
from rmq.core.codec import Compressed
from rmq.core.delivery import Reject, Retry, Snooze
from rmq.core.finding import Finding
from rmq.core.function_library import FunctionLibrary
from rmq.core.history import Sample
from rmq.core.ids import MessageId
from rmq.core.interceptor import Interceptor, Outcome
from rmq.core.limits import Concurrency, Rate
from rmq.core.message import Failure, Message, Outgoing, Receipt, SendResult
from rmq.core.pause import Pause
from rmq.core.retry import Exponential, Immediate, Levels
from rmq.core.settings import Fsync, Replicated, Settings, TopicSettings
from rmq.core.version import VERSION
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
    InvalidKey,
    InvalidReceipt,
    InvalidType,
    InvalidValue,
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
    TopicVanished,
    Unavailable,
    WorkRolledBack,
)
from rmq.protocol.acl import AclRules, acl_rules
from rmq.protocol.flows.dead_letters import Redriven
from rmq.protocol.flows.pages import Page, Span
from rmq.protocol.flows.query_admin import HeldQuery, Sink
from rmq.protocol.flows.recurring import ScheduleState
from rmq.protocol.flows.topic_admin import Deleted
from rmq.worker import Health, Scheduler, Worker

__version__ = VERSION

__all__ = [
    # the doors
    "AccessDenied",
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
    "Audit",
    "Audited",
    "ClaimLost",
    "Claimed",
    "Claims",
    "Client",
    "Compressed",
    "Concurrency",
    "ConfigurationError",
    "Consumer",
    "DecodeError",
    "Deleted",
    "Delivery",
    "DeliveryError",
    "Depends",
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
    "InvalidKey",
    "InvalidReceipt",
    "InvalidType",
    "InvalidValue",
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
    "TopicSettings",
    "TopicVanished",
    "Unavailable",
    "WorkRolledBack",
    "Worker",
    "WorkerStatus",
    "acl_rules",
    "idempotent",
]
