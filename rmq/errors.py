"""The exceptions of RMQ. Each class says who can fix the cause, and whether you can try again.

* `ConfigurationError`: The caller can fix the cause. No message was sent, and trying again does not
  help.
* `SendError`: The producer can fix the cause with a smaller body or a later send, or the operator
  with more memory.
* `DeliveryError`: This consumer may no longer settle the delivery. Do not try again.
* `DecodeError`: The producer can fix the bytes, or the reader can use another codec.
* `StorageError`: The server or the network failed. Each subclass says whether the call took effect.

`rmq.kernel.transport` converts exceptions of redis-py to these exceptions. The exception of
redis-py is the `__cause__`.
"""

from __future__ import annotations

from typing import Any

PAGE = "docs/errors.md"  # has a heading for each exception of RMQ, which `rmq explain` prints


class RMQError(Exception):
    """The base class of all exceptions of RMQ.

    A traceback ends with the command that explains the exception.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.add_note(f"explained by: rmq explain {self._documented}")

    @property
    def docs(self) -> str:
        """The page and heading of the documentation about this exception.

        It explains what happened, whether anything is lost, and what to do. If you define a
        subclass, it has the heading of its base class in RMQ.
        """
        return f"{PAGE}#{self._documented.lower()}"

    @property
    def _documented(self) -> str:
        ours = (cls for cls in type(self).__mro__ if cls.__module__.partition(".")[0] == "rmq")
        return next(ours).__name__


# --- the caller can fix it ---------------------------------------------------------------------


class ConfigurationError(RMQError):
    """An argument or a setting is wrong. No message was sent."""


class InvalidValue(ConfigurationError, ValueError):
    """A value is out of range, or its form is wrong.

    The error message names the field, the value and the fix.
    """


class InvalidType(ConfigurationError, TypeError):
    """A value has the wrong type.

    The error message names the field, the wrong type and the right type.
    """


class InvalidReceipt(InvalidValue):
    """The text is not a receipt of a delivery, or the receipt belongs to another topic."""


class InvalidFilter(InvalidValue):
    """The text is not a valid filter of dead letters.

    The error message shows the text with a caret (^) at the mistake.

    Attributes:
        position: Number of characters of the filter before the mistake.
    """

    def __init__(self, message: str, position: int = 0) -> None:
        super().__init__(message)
        self.position = position


class TopicNotFound(ConfigurationError):
    """The topic does not exist in this Redis."""


class TopicVanished(ConfigurationError):
    """A topic that this client had open was deleted, flushed, or lost in a failover.

    RMQ does not silently create the topic again, because its messages are lost.

    Attributes:
        recreated: Whether another client has created the topic again. RMQ then raises the error
            once. The next call uses the new topic or raises SettingsMismatch.
        is_stamp: Whether a part (slot) of the topic exists, but with another creation stamp than in
            this client. After a resize, RMQ handles this without an error.
    """

    def __init__(self, message: str, recreated: bool = False, is_stamp: bool = False) -> None:
        super().__init__(message)
        self.recreated = recreated
        self.is_stamp = is_stamp


class ScheduleNotFound(ConfigurationError):
    """The topic has no schedule with this name."""


class JobNotFound(ConfigurationError):
    """There is no job with this id, or the job ended long ago."""


class BatchNotFound(ConfigurationError):
    """There is no batch with this name, or it ended long ago."""


class BatchClosed(ConfigurationError):
    """The batch accepts no new members, because it is closed, cancelled or done."""


class TopicNotEmpty(ConfigurationError):
    """The topic was not deleted, because it has messages and you did not force the deletion."""


class SettingsMismatch(ConfigurationError):
    """The topic exists with other settings.

    The error message names each setting that differs, with its value in Redis and in your program.
    """


class FormatMismatch(ConfigurationError):
    """The topic has the format of another version of RMQ. RMQ has not changed the topic.

    The error message names the format and says what to do.
    """


class EmbeddedError(ConfigurationError):
    """An embedded Redis cannot be started or shared.

    The error message names its directory, and says how to fix the problem.
    """


class AccessDenied(ConfigurationError):
    """The Redis user of this client does not have a right that the call needs.

    The error message names the right and the ACL rule that grants it. `rmq acl generate` prints all
    rules of a role.
    """


class LifespanFailed(RMQError):
    """A lifespan function, or a dependency of scope "process", failed when the worker started.

    The worker has received no message. `__cause__` is the exception of the function.
    """


# --- sending -----------------------------------------------------------------------------------


class SendError(RMQError):
    """A message was not accepted."""


class PayloadTooLarge(SendError, ValueError):
    """The encoded body is larger than the topic's `max_body`. No message was sent."""


class StoreUnavailable(SendError):
    """The store of `rmq.Offloaded` has not accepted the bodies. Try again later.

    No message was sent.
    """


class EncodeError(SendError, ValueError):
    """The codec cannot encode the body. No message was sent."""


class QueueFull(SendError):
    """The topic has reached its `max_length`, or Redis is at `maxmemory`. Try again later.

    Attributes:
        results: For `send_many`, the result of each message, in order. None for a refused message.
    """

    def __init__(self, message: str, results: list[Any] | None = None) -> None:
        super().__init__(message)
        self.results: list[Any] = results or []


class TopicPaused(SendError):
    """Sends to the topic are paused. No message was stored. Send again when the topic is resumed.

    Attributes:
        results: For `send_many`, the result of each message, in order. None for a refused message.
            All messages are refused, unless the pause began or ended during the call.
    """

    def __init__(self, message: str, results: list[Any] | None = None) -> None:
        super().__init__(message)
        self.results: list[Any] = results or []


class NotDurable(SendError):
    """The message is stored, but too few replicas or disks confirmed the message in time.

    You can send the message again with the same id. RMQ does not store it twice while the first
    message exists, or within the topic's `dedup_window` after the first message was settled.

    Attributes:
        results: Result of each message, with the durability that the message has reached. None for
            a message that was not sent.
    """

    def __init__(self, message: str, results: list[Any] | None = None) -> None:
        super().__init__(message)
        self.results: list[Any] = results or []


# --- consuming ---------------------------------------------------------------------------------


class DeliveryError(RMQError):
    """This consumer could not settle a delivery."""


class LeaseLost(DeliveryError):
    """The delivery no longer has its lease. Another consumer may have the message.

    Either the lease expired and the delivery was rolled back, or somebody else settled, gave back
    or deleted the message, or Redis lost it.

    The call changed nothing. Do not repeat it, because the other consumer settles the message.
    """


class AlreadySettled(DeliveryError):
    """An earlier call has already settled this delivery, or has found that its lease was lost."""


class Cancelled(DeliveryError):
    """A program has asked to cancel this delivery with `topic.cancel(id, running=True)`.

    `checkpoint`, `extend`, `progress`, `save` and `step` of a delivery raise this error. If the
    handler does not catch it, the message ends as cancelled. The handler can still ack the message.
    """


class NotFinished(RMQError, TimeoutError):
    """A message has not ended within the timeout of the call.

    The message is still waiting or in flight. Wait again, or call `handle.read()`.
    """


class ResultNotFound(RMQError):
    """There is no result to wait for.

    Attributes:
        reason: "not_kept" if RMQ does not keep the result of the message, or has deleted it.
            "unknown" if no message and no result has this id.
    """

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class InvalidKey(DeliveryError, ValueError):
    """RMQ cannot use the business key of a message. The handler did not run.

    This error counts as a failure of the handler. With `on_error={rmq.InvalidKey: rmq.Reject}`,
    such messages become dead letters immediately.
    """


class ClaimLost(DeliveryError):
    """The claim on the business key no longer existed when the handler returned.

    The claim expired or was deleted while the handler ran. Another delivery may have done the same
    work, or may be doing it now. RMQ has not recorded the work of this delivery as done.
    """


class WorkRolledBack(DeliveryError):
    """The handler returned, although the database had already rolled back its transaction.

    A statement had failed, and the handler caught the error and continued. The transaction changed
    nothing. This error counts as a failure of the handler.
    """


# --- the outbox --------------------------------------------------------------------------------


class StubNotFound(ConfigurationError):
    """The outbox has no message (stub) with this id.

    The message was purged, or the message is in another database.
    """


class StubSettled(ConfigurationError):
    """The message (stub) in the outbox is already confirmed or withdrawn. Nothing has changed.

    Attributes:
        status: "confirmed" (a consumer has settled the message) or "void" (a person has withdrawn
            the message).
    """

    def __init__(self, message: str, status: str) -> None:
        super().__init__(message)
        self.status = status


class QueryOwned(DeliveryError):
    """Another process runs this query. The checkpoint was copied, or the query was started twice.

    Attributes:
        left_s: Seconds until another process may run the query, if the current owner does not renew
            its lease.
    """

    def __init__(self, message: str, left_s: float = 0.0) -> None:
        super().__init__(message)
        self.left_s = left_s


class DecodeError(RMQError, ValueError):
    """Bytes in Redis cannot be read as the body or headers of a message.

    Attributes:
        reference: Reference to the offloaded body that RMQ could not read. None if the error has
            another cause.
    """

    reference: Any = None


# --- the server or the network -----------------------------------------------------------------


class StorageError(RMQError):
    """Redis or the network failed during a call."""

    # If a call failed at once: how long the caller may repeat the call, in seconds. None if the
    # client has already repeated the call.
    _repeat_for: float | None = None


class Unavailable(StorageError):
    """Redis cannot be reached or refuses to work now. The call did not take effect."""

    # Whether Redis answers but refuses all writes, because its disk is full or a snapshot failed.
    _refuses_writes: bool = False


class OutcomeUnknown(StorageError):
    """The call may have taken effect, but its reply never arrived.

    You can safely repeat every call of RMQ. Repeat a send with the same message id. Repeat an ack,
    or another call on a delivery, with the same consumer. Within a minute, the repeated call gets
    the reply to the first call. Later, the repeated call may raise `LeaseLost`, because the first
    call has settled the delivery.
    """


class StageLost(StorageError):
    """A stage has lost messages, because it expired or because Redis lost its data.

    RMQ publishes no more messages of this stage. Stage the messages again, under another name.
    """


class HistoryLost(StorageError):
    """Acked messages were removed from the history of a topic before you read them.

    The history had reached a limit. To continue after the gap, set `position[error.slot] =
    error.removed_to`, and read after this position.

    Attributes:
        slot: Index of the slot (part of the topic).
        position: Entry after which you wanted to continue.
        removed_to: Last entry that was removed.
    """

    def __init__(
        self, text: str = "", *, slot: int = 0, position: str = "", removed_to: str = ""
    ) -> None:
        super().__init__(text)
        self.slot = slot
        self.position = position
        self.removed_to = removed_to


class ScriptFailed(StorageError):
    """A Lua script has stopped: a key has a wrong type, a record is unreadable, or Redis failed.

    RMQ's scripts check types and records before they write. If Redis fails in the middle of a
    script, the script's earlier writes remain.
    """
