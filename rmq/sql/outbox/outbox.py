"""The outbox: write messages in the same database transaction as the business change.

The database commits the change and its messages together, or not at all. A relay
(`rmq.sql.outbox.relay`) sends the committed messages. This module does not need Redis.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import NoSuchModuleError

from rmq.errors import ConfigurationError, InvalidType, InvalidValue, PayloadTooLarge
from rmq.kernel.core import codec as codecs
from rmq.kernel.core.body_limits import BODY_CEILING, BODY_DEFAULT
from rmq.kernel.core.codec import Codec
from rmq.kernel.core.groups import Groups
from rmq.kernel.core.ids import MessageId
from rmq.kernel.core.message import Outgoing
from rmq.kernel.core.results import keep_seconds
from rmq.kernel.core.retry import Exponential, RetryPolicy, parse_policy
from rmq.kernel.core.settings import Settings
from rmq.kernel.core.validation import Duration, Moment, check_epoch_ms, check_int, duration_ms
from rmq.kernel.producer.encode import encode
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.sessions import ReplaySessions
from rmq.kernel.topic.slot_choice import slot_of
from rmq.sql.connections import (
    Here,
    HereAsync,
    check_here,
    refuse_autocommit,
    run_async,
)
from rmq.sql.database import SUPPORTED, now_ms
from rmq.sql.errors import require_table
from rmq.sql.outbox import tables
from rmq.sql.outbox.confirm import Confirming
from rmq.sql.outbox.repair import Repair
from rmq.sql.outbox.tables import CREATE, UNCONFIRMED, stubs

MAX_SENDS = 16
LOG_FOR_S = 3600.0
RESEND = Exponential(base=60.0, cap=3600.0, jitter=0.0)

# The outbox checks its own limits; the relay checks whether the topic has groups.
_NO_LIMITS = Settings(max_body=BODY_CEILING, groups=Groups())
_SESSIONS = ReplaySessions()


class _NewStub(NamedTuple):
    id: MessageId
    values: dict[str, Any]  # of its columns
    insert: sa.Insert


class StubInsert(NamedTuple):
    """An INSERT statement that writes a message. You can execute it with a database driver.

    Attributes:
        id: Id of the stub, which is the row of the message.
        sql: Statement with a `%s` for each parameter.
        parameters: Parameters, in order.
    """

    id: MessageId
    sql: str
    parameters: list[Any]


class Outbox(Confirming, Repair):
    """Writes messages in a database transaction, and decides when to send lost messages again.

    An outbox also has methods for consumers: `confirms`, `unconfirmed` and `confirm_handler`.
    `rmq.sql.outbox.confirm` describes them. To change stubs (the rows of messages), use `resend`,
    `void`, `withdraw` and `purge`. `rmq.sql.outbox.repair` describes them.

    A program needs one Outbox object. It has no connection, and threads and tasks may share it.
    Create its tables (`rmq.outbox.metadata`) with a migration, or with `rmq outbox create`.

    Args:
        max_sends: Maximum number of sends of an unconfirmed message, 1 to 1000. After the last
            send, the stub becomes "exhausted", and the resender calls its `notify` function.
        resend: Policy for the time between two sends of an unconfirmed message: rmq.Exponential or
            rmq.Levels. RMQ uses the longest waits of the policy, without jitter.
        max_body: Maximum size of an encoded body in bytes, up to 16 MiB. If the limit of the topic
            is smaller, sending a larger body fails. The stub is then "exhausted" and has the error.
        log_for: Time for which a consumer's log row prevents a resend, in seconds or as a
            timedelta.

    Raises:
        InvalidValue, InvalidType: An argument is not valid.
    """

    def __init__(
        self,
        *,
        max_sends: int = MAX_SENDS,
        resend: RetryPolicy = RESEND,
        max_body: int = BODY_DEFAULT,
        log_for: Duration = LOG_FOR_S,
    ) -> None:
        self.max_sends = check_int(max_sends, "max_sends", 1, 1000)
        ladder = parse_policy(resend).ladder(self.max_sends)
        if not all(ladder):
            raise InvalidValue(
                f"resend: {resend!r} leaves no time to confirm; give rmq.Exponential or rmq.Levels"
            )
        self._ladder = ladder
        self.max_body = check_int(max_body, "max_body", 1, BODY_CEILING)
        self.log_for_ms = duration_ms(log_for, "log_for")

    def resend_after_ms(self, sends: int) -> int:
        """Return the minimum time in ms between a message's last send and its next send.

        The time depends on how often the message was sent.
        """
        return self._ladder[min(max(sends, 1), len(self._ladder)) - 1]

    def send(
        self,
        here: Here,
        topic: str,
        body: Any,
        *,
        priority: int | None = None,
        delay: Duration | None = None,
        at: Moment | None = None,
        slot_basis: str | bytes | None = None,
        headers: Mapping[str, str] | None = None,
        expires: Duration | None = None,
        retry: RetryPolicy | None = None,
        max_runtime: Duration | None = None,
        type: str | None = None,
        group: str | None = None,
        share_key: str | None = None,
        weight: int | None = None,
        keep_result: Duration | None = None,
        codec: str | Codec = "json",
        confirm: bool = True,
    ) -> MessageId:
        """Write one message in the caller's transaction.

        A relay process sends the message to Redis after the commit. The other arguments are fields
        of `rmq.Outgoing`. You cannot give a merge key, because RMQ confirms each message
        separately.

        Args:
            here: Connection or Session with the caller's transaction. This method does not commit
                it.
            topic: Name of the topic.
            body: Value that the codec can encode.
            delay: Delay from now, by the database's clock, in seconds or as a timedelta.
            codec: Codec, as in `Client.topic`.
            confirm: Whether a consumer confirms the message (see docs/outbox.md). If false, the
                message counts as confirmed when Redis has stored it.

        Guarantee:
            If the transaction commits, RMQ sends the message at least once, even if a process or
            Redis dies. If the transaction does not commit, RMQ never sends the message. RMQ keeps
            the order of messages that have the same topic and the same `slot_basis` or group. This
            order does not apply to transactions that overlap.

        Returns:
            The id of the row. `rmq.outbox.stub_id` computes this id from the id of the message.

        Raises:
            InvalidValue, InvalidType, EncodeError, PayloadTooLarge: An argument is not valid. No
                message was written.
            ConfigurationError: The table is missing. Or the connection uses AUTOCOMMIT, so that a
                rollback would keep the message. Errors of the database are raised as they are.
        """
        check_here(here, "outbox.send")
        message = Outgoing(
            body, priority, delay, at, slot_basis=slot_basis, headers=headers, expires=expires,
            retry=retry, max_runtime=max_runtime, type=type, group=group, share_key=share_key,
            weight=weight, keep_result=keep_result,
        )  # fmt: skip
        stub = self._new_stub(topic, message, codec, confirm)
        _write(here, stub)
        return stub.id

    async def send_async(
        self,
        here: HereAsync,
        topic: str,
        body: Any,
        *,
        priority: int | None = None,
        delay: Duration | None = None,
        at: Moment | None = None,
        slot_basis: str | bytes | None = None,
        headers: Mapping[str, str] | None = None,
        expires: Duration | None = None,
        retry: RetryPolicy | None = None,
        max_runtime: Duration | None = None,
        type: str | None = None,
        group: str | None = None,
        share_key: str | None = None,
        weight: int | None = None,
        keep_result: Duration | None = None,
        codec: str | Codec = "json",
        confirm: bool = True,
    ) -> MessageId:
        """Write one message as `send` does, on an AsyncConnection or an AsyncSession."""
        check_here(here, "outbox.send_async")
        message = Outgoing(
            body, priority, delay, at, slot_basis=slot_basis, headers=headers, expires=expires,
            retry=retry, max_runtime=max_runtime, type=type, group=group, share_key=share_key,
            weight=weight, keep_result=keep_result,
        )  # fmt: skip
        stub = self._new_stub(topic, message, codec, confirm)
        await run_async(here, _write, stub)
        return stub.id

    def statement(
        self,
        dialect: str,
        topic: str,
        message: Outgoing,
        *,
        codec: str | Codec = "json",
        confirm: bool = True,
    ) -> StubInsert:
        """Return the INSERT statement of a message. Use it on a connection without SQLAlchemy.

        Execute the statement in the transaction of the business change. The driver must write
        parameters as `%s`. With SQLAlchemy, use `send` instead.

        Args:
            dialect: Kind of the database: "postgresql", "mysql", "mariadb" or "sqlite".
            topic: Name of the topic.
            message: Message to write. It cannot have an id, a dedup key or a merge key.
            codec: Codec of the body.
            confirm: Whether a consumer confirms the message.

        Raises:
            InvalidValue, InvalidType, EncodeError, PayloadTooLarge: The message cannot be sent.
            ConfigurationError: RMQ does not support the dialect.
        """
        if message.id or message.dedup_key or message.merge_key:
            raise InvalidValue("message: an outbox takes no id, dedup_key or merge_key")
        stub = self._new_stub(topic, message, codec, confirm)
        sql, parameters = _compiled(dialect, stub.insert is _INSERT[True])
        values = [
            each.constant if each.name not in stub.values
            else each.convert(stub.values[each.name]) if each.convert
            else stub.values[each.name]
            for each in parameters
        ]  # fmt: skip
        return StubInsert(stub.id, sql, values)

    def _new_stub(
        self, topic: str, message: Outgoing, codec: str | Codec, confirm: bool
    ) -> _NewStub:
        chosen = codecs.by_name(codec) if isinstance(codec, str) else codecs.register(codec)
        # The checks of a direct send. They do not depend on the prefix, which the relay chooses.
        context = TopicContext("rmq", topic, chosen, _SESSIONS, {})
        encoded = encode(context, _NO_LIMITS, message)
        if len(encoded.body) > self.max_body:
            raise PayloadTooLarge(
                f"body: {len(encoded.body)} bytes as {chosen.name}; this outbox's max_body is "
                f"{self.max_body}. Send a reference to the data, or allow more in rmq.outbox.Outbox"
            )
        if not isinstance(confirm, bool):
            raise InvalidType(f"confirm: {confirm!r}; give True or False")
        delay_ms = 0 if message.delay is None else duration_ms(message.delay, "delay", zero=True)
        at_ms = 0 if message.at is None else check_epoch_ms(message.at, "at")
        id = tables.new_id()
        return _NewStub(
            id,
            {
                "id": str(id),
                "topic": topic,
                "slot_basis": _basis_bytes(encoded.basis),
                "body": encoded.body,
                "codec": chosen.number,
                "options": _options_json(message),
                "confirm": confirm,
                "wait_ms": delay_ms or at_ms,
                "first_ms": self.resend_after_ms(1),
            },
            _INSERT[bool(delay_ms)],
        )


def _basis_bytes(value: str | bytes | None) -> bytes | None:
    if value is None:
        return None
    slot_of(value, 1)  # checks the type
    return value.encode() if isinstance(value, str) else bytes(value)


def _options_json(message: Outgoing) -> str:
    """Check the options of a message. Return them as JSON, in the units of the table.

    The JSON is ASCII, so that every database can store it.
    """
    expires, retry, runtime = message.expires, message.retry, message.max_runtime
    keep = message.keep_result
    options = {
        "priority": message.priority,
        "headers": dict(message.headers) if message.headers else None,
        "expires_ms": None if expires is None else duration_ms(expires, "expires"),
        "retry": None if retry is None else parse_policy(retry).to_redis(),
        "max_runtime_ms": None if runtime is None else duration_ms(runtime, "max_runtime"),
        "keep_s": None if keep is None else keep_seconds(keep),
    }
    options |= {name: getattr(message, name) for name in ("type", "group", "share_key", "weight")}
    given = {name: value for name, value in options.items() if value is not None}
    return json.dumps(given, separators=(",", ":"))


def _write(here: Here, stub: _NewStub) -> None:
    connection = here
    if not isinstance(connection, sa.Connection):  # a Session may have a bind for the table
        connection = connection.connection(bind_arguments={"clause": stub.insert})
    refuse_autocommit(connection)
    with require_table(stubs, CREATE):
        here.execute(stub.insert, stub.values)


def _insert(is_delayed: bool) -> sa.Insert:
    """Return the INSERT statement of a message. A delay counts from the database's time."""
    wait = sa.bindparam("wait_ms", type_=sa.BigInteger)
    first = sa.bindparam("first_ms", type_=sa.BigInteger)
    due = now_ms() + wait if is_delayed else wait
    # The resend time counts from the due time, because the message cannot be confirmed before.
    begins = due if is_delayed else sa.case((wait > now_ms(), wait), else_=now_ms())
    # Values for the other columns are passed at the execution.
    return sa.insert(stubs).values(
        due_ms=due, created=now_ms(), resend_at=begins + first, status=UNCONFIRMED, sends=0
    )


_COLUMNS = ["id", "topic", "slot_basis", "body", "codec", "options", "confirm"]
_INSERT = {is_delayed: _insert(is_delayed).inline() for is_delayed in (False, True)}


class _Parameter(NamedTuple):
    """A parameter of an INSERT statement.

    `convert` converts a value to the form that the driver needs.
    """

    name: str
    constant: Any
    convert: Callable[[Any], Any] | None


@cache
def _compiled(dialect: str, is_delayed: bool) -> tuple[str, list[_Parameter]]:
    try:
        kind: Callable[..., sa.Dialect] = sa.make_url(f"{dialect}://").get_dialect()
        made = kind(paramstyle="format")
        if made.name not in SUPPORTED:
            raise NoSuchModuleError
    except NoSuchModuleError:
        raise ConfigurationError(
            f"dialect: {dialect!r}; give one of {', '.join(SUPPORTED)}"
        ) from None
    compiled = _INSERT[is_delayed].compile(dialect=made, column_keys=_COLUMNS)
    assert isinstance(compiled, sa.sql.compiler.SQLCompiler)
    kinds = {name: bind.type.dialect_impl(made) for name, bind in compiled.binds.items()}
    return str(compiled), [
        _Parameter(name, compiled.params[name], kinds[name].bind_processor(made))
        for name in compiled.positiontup or ()
    ]
