"""The exceptions of RMQ: who can fix the cause, and whether it is safe to try again.

* `ConfigurationError`: the caller, before anything was sent. Trying again changes nothing.
* `SendError`: the producer (a smaller body, a later time) or the operator (a fuller Redis).
* `DeliveryError`: the delivery is no longer this consumer's to settle.
* `DecodeError`: the producer of the bytes, or the codec chosen to read them.
* `StorageError`: the server or the network. Each subclass says whether the call took effect.

Exceptions of redis-py are translated by `rmq.kernel.transport` and become `__cause__`.
"""

from __future__ import annotations

from typing import Any

PAGE = "docs/errors.md"  # one heading for each exception of RMQ; `rmq explain` prints them


class RMQError(Exception):
    """The root of all exceptions of RMQ.

    A traceback ends with the command that explains the exception.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.add_note(f"explained by: rmq explain {self._documented}")

    @property
    def docs(self) -> str:
        """Page and heading that say what happened, whether anything is lost, and what to do.

        A subclass of your own has the heading of the RMQ class that it inherits from.
        """
        return f"{PAGE}#{self._documented.lower()}"

    @property
    def _documented(self) -> str:
        """The name of the nearest base class that RMQ defines."""
        ours = (cls for cls in type(self).__mro__ if cls.__module__.partition(".")[0] == "rmq")
        return next(ours).__name__


# --- the caller can fix it ---------------------------------------------------------------------


class ConfigurationError(RMQError):
    """An argument or a setting cannot work; nothing was sent."""


class InvalidValue(ConfigurationError, ValueError):
    """A value is out of its range or grammar; the message names field, value and fix."""


class InvalidType(ConfigurationError, TypeError):
    """A value has the wrong type; the message names the field, the type and what to give."""


class InvalidReceipt(InvalidValue):
    """A text is not a receipt of RMQ, or the receipt belongs to another topic."""


class InvalidFilter(InvalidValue):
    """A text is not a filter of dead letters; the message shows it with a caret at the mistake.

    Attributes:
        position: Number of characters of the filter before the mistake.
    """

    def __init__(self, message: str, position: int = 0) -> None:
        super().__init__(message)
        self.position = position


class TopicNotFound(ConfigurationError):
    """The topic does not exist in this Redis."""


class TopicVanished(ConfigurationError):
    """A topic that this client had open is gone: deleted, flushed, or lost in a failover.

    RMQ does not create it again silently, because its messages are gone.

    Attributes:
        recreated: Whether another client has created the topic again. If so, the error is raised
            once, and the next call uses the new topic or raises SettingsMismatch.
        is_stamp: Whether a slot has another stamp than this client knows. RMQ follows a resize
            without an error.
    """

    def __init__(self, message: str, recreated: bool = False, is_stamp: bool = False) -> None:
        super().__init__(message)
        self.recreated = recreated
        self.is_stamp = is_stamp


class ScheduleNotFound(ConfigurationError):
    """The topic has no schedule of this name."""


class JobNotFound(ConfigurationError):
    """There is no job of this id, or it ended long ago."""


class TopicNotEmpty(ConfigurationError):
    """A topic holds messages and was not to be deleted with them; nothing was changed."""


class SettingsMismatch(ConfigurationError):
    """The topic exists with other settings; the message names each setting and both values."""


class FormatMismatch(ConfigurationError):
    """Another version of RMQ wrote the topic, in another format; nothing was changed.

    The message names the format and says what to do.
    """


class EmbeddedError(ConfigurationError):
    """An embedded Redis cannot be started or shared; the message names directory and fix."""


class AccessDenied(ConfigurationError):
    """The Redis user of this client lacks a right; the message names it, and the ACL rule to add.

    `rmq acl generate` prints all rules of a role.
    """


class LifespanFailed(RMQError):
    """A lifespan, or a dependency that lives as long as the process, raised at the worker's start.

    The worker has received no message. `__cause__` is the exception that was raised.
    """


# --- sending -----------------------------------------------------------------------------------


class SendError(RMQError):
    """A message was not accepted."""


class PayloadTooLarge(SendError, ValueError):
    """The encoded body is over the topic's `max_body`; nothing was sent."""


class StoreUnavailable(SendError):
    """The store of `rmq.Offloaded` did not take the bodies; nothing was sent. Try again later."""


class EncodeError(SendError, ValueError):
    """The body cannot be written by the codec; nothing was sent."""


class QueueFull(SendError):
    """The topic's `max_length` is reached, or Redis is at `maxmemory`; try again later.

    Attributes:
        results: For `send_many`, one entry for each message in order; None: it was refused.
    """

    def __init__(self, message: str, results: list[Any] | None = None) -> None:
        super().__init__(message)
        self.results: list[Any] = results or []


class TopicPaused(SendError):
    """Sends to the topic are paused; nothing was stored. Send again when it is resumed.

    Attributes:
        results: For `send_many`, one entry for each message in order; None: the message was
            refused. Some messages are stored only if the pause began or ended during the call.
    """

    def __init__(self, message: str, results: list[Any] | None = None) -> None:
        super().__init__(message)
        self.results: list[Any] = results or []


class NotDurable(SendError):
    """The message is stored, but too few replicas, or no fsync, confirmed it in time.

    Sending the same id again adds nothing while the message is there, nor inside the topic's
    `dedup_window` after it was settled.

    Attributes:
        results: The results of the send, with the level that was reached; None: the message was
            not sent.
    """

    def __init__(self, message: str, results: list[Any] | None = None) -> None:
        super().__init__(message)
        self.results: list[Any] = results or []


# --- consuming ---------------------------------------------------------------------------------


class DeliveryError(RMQError):
    """A delivery could not be settled by this consumer."""


class LeaseLost(DeliveryError):
    """The lease expired and was rolled back: another consumer may have the message now.

    Nothing was changed. Do not repeat the call; the other consumer settles the message.
    """


class AlreadySettled(DeliveryError):
    """This delivery was settled before, by this very object."""


class InvalidKey(DeliveryError, ValueError):
    """A message has no usable business key; its handler was not run.

    It counts as a failure of the handler. `on_error={rmq.InvalidKey: rmq.Reject}` sends such
    messages to the dead letters at once.
    """


class ClaimLost(DeliveryError):
    """The claim on a business key was gone when the work was done.

    It had expired, or was deleted, while the handler ran: another delivery may have done, or be
    doing, the same work. No claim is recorded as done for this delivery.
    """


class WorkRolledBack(DeliveryError):
    """The handler returned, but the database had rolled back its transaction before the commit.

    A statement failed, and the handler caught the error and continued. The transaction changed
    nothing. It counts as a failure of the handler.
    """


# --- the outbox --------------------------------------------------------------------------------


class StubNotFound(ConfigurationError):
    """The outbox has no stub with this id: it was purged, or is of another database."""


class StubSettled(ConfigurationError):
    """The stub is confirmed or void, so it is not sent again; nothing was changed.

    Attributes:
        status: "confirmed" or "void".
    """

    def __init__(self, message: str, status: str) -> None:
        super().__init__(message)
        self.status = status


class QueryOwned(DeliveryError):
    """Another driver runs this query: its checkpoint was copied, or it was started twice.

    Attributes:
        left_s: Seconds until another driver may run it, unless the owner renews its lease.
    """

    def __init__(self, message: str, left_s: float = 0.0) -> None:
        super().__init__(message)
        self.left_s = left_s


class DecodeError(RMQError, ValueError):
    """Bytes in Redis cannot be read as the body or headers of a message.

    Attributes:
        reference: Reference to an offloaded body that was not read; None: another problem.
    """

    reference: Any = None


# --- the server or the network -----------------------------------------------------------------


class StorageError(RMQError):
    """Redis did not carry out a call."""

    # Seconds in which the caller may repeat a call that failed fast. None: the client has already
    # repeated the call.
    _repeat_for: float | None = None


class Unavailable(StorageError):
    """Redis cannot be reached or refuses to work now; the call did not take effect."""

    # Whether Redis answers but refuses all writes, because its disk is full or a snapshot failed.
    _refuses_writes: bool = False


class OutcomeUnknown(StorageError):
    """The call may have taken effect: its reply never came.

    Every RMQ call is safe to repeat: a send with the same message id, a verb of a delivery on the
    same consumer. Within a minute, the repeated call gets the reply to the first call. Later it may
    raise `LeaseLost` for a delivery that the first call settled.
    """


class StageLost(StorageError):
    """A stage is incomplete: it expired, or Redis lost it.

    No more messages of that stage are published. Stage the messages again, under another name.
    """


class ScriptFailed(StorageError):
    """A script stopped at a wrong type, an unreadable record or an error of the server.

    RMQ's scripts check types and records before they write. If the server fails a later command of
    a script, the writes before it stay.
    """
