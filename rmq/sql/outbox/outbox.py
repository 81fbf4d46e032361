"""The outbox: write a message in the transaction that has reason to send it.

A business change and the message that tells of it are one commit: both are there, or neither is. A
relay sends what is committed (`rmq.sql.outbox.relay`); nothing here needs Redis.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa

from rmq.core import codec as codecs
from rmq.core.codec import Codec
from rmq.core.ids import MessageId
from rmq.core.message import Outgoing
from rmq.core.replay_session import ReplaySessions
from rmq.core.retry import Exponential, RetryPolicy, parse_policy
from rmq.core.settings import BODY_CEILING, Settings
from rmq.core.slots import slot_of
from rmq.core.topic_context import TopicContext
from rmq.core.validation import Duration, Moment, check_epoch_ms, check_int, duration_ms
from rmq.errors import InvalidType, InvalidValue, PayloadTooLarge
from rmq.protocol.draft import make_draft
from rmq.sql.database import needing, now_ms
from rmq.sql.outbox import ids
from rmq.sql.outbox.confirm import Confirming
from rmq.sql.outbox.repair import Repair
from rmq.sql.outbox.tables import UNCONFIRMED, stubs
from rmq.sql.outbox.transaction import (
    CREATE as CREATE,
    Here,
    HereAsync,
    check,
    check_async,
    refuse_autocommit,
    refuse_autocommit_async,
)

MAX_SENDS = 16
MAX_BODY = 256 * 1024  # as a topic's own default
LOG_FOR_S = 3600.0
RESEND = Exponential(base=60.0, cap=3600.0, jitter=0.0)

_FREE = Settings(max_body=BODY_CEILING)  # what the outbox allows is checked here


class _Line(NamedTuple):
    """A stub before it is a row: its columns, and the statement that fits them."""

    id: MessageId
    values: dict[str, Any]
    is_delayed: bool


class Outbox(Confirming, Repair):
    """Writes messages into the database of a business transaction, and knows how to resend them.

    Beside `send`: `confirms`, `unconfirmed` and `confirm_handler` for consumers, in
    `rmq.sql.outbox.confirm`; `resend`, `void` and `purge` for stubs, in `rmq.sql.outbox.repair`.

    One for a program. It holds no connection; threads and tasks may share it. Its tables are those
    of `rmq.outbox.metadata`: let your migrations create them, or `rmq outbox create`.

    Args:
        max_sends: how often a message is sent that nobody confirms, 1 to 1000; then its stub is
            "exhausted", and a person is told.
        resend: how long after each send a message counts as lost: rmq.Exponential or rmq.Levels.
            Their longest waits are taken; nothing is left to chance.
        max_body: the largest encoded body, bytes, up to 16 MiB. What its topic allows may be less;
            that is found when the message is sent, and its stub is then "exhausted" with the error.
        log_for: how long a consumer's note of having begun holds back a resend, seconds or
            timedelta.

    Raises:
        InvalidValue, InvalidType: an argument cannot work.
    """

    def __init__(
        self,
        *,
        max_sends: int = MAX_SENDS,
        resend: RetryPolicy = RESEND,
        max_body: int = MAX_BODY,
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
        """How long after so many sends a message that nobody confirmed counts as lost, ms."""
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
        codec: str | Codec = "json",
        confirm: bool = True,
    ) -> MessageId:
        """Write one message, as part of the caller's transaction.

        The other arguments are the fields of `rmq.Outgoing`, which tells of each. Messages of an
        outbox do not merge: each one is confirmed by itself.

        Args:
            here: a Connection or a Session; its transaction decides. It is not committed here.
            topic: where the message goes.
            body: what the codec can write.
            delay: counts from now, by the database's clock.
            codec: "json", "msgpack", "bytes", rmq.Compressed(), or one of your own.
            confirm: whether a consumer confirms it (see docs/outbox.md). If not, it counts as
                confirmed once Redis has it.

        Guarantee:
            If the transaction commits, the message is sent at least once, however often the relay,
            Redis or this process dies; if it does not, never. Messages of one topic and slot_basis
            are sent in the order in which they were written, where their transactions came one
            after another.

        Returns:
            The id of the stub. `rmq.outbox.stub_id` finds it from the id of the message.

        Raises:
            InvalidValue, InvalidType, EncodeError, PayloadTooLarge: an argument cannot work;
                nothing was written.
            ConfigurationError: the table is missing, or the connection commits every statement
                alone (AUTOCOMMIT), so that a rollback would keep the message. What the database
                raises.
        """
        check(here, "outbox.send")
        out = Outgoing(
            body, priority, delay, at, slot_basis=slot_basis, headers=headers, expires=expires,
            retry=retry, max_runtime=max_runtime,
        )  # fmt: skip
        line = self._line(topic, out, codec, confirm)
        refuse_autocommit(here, _INSERT[line.is_delayed])
        with needing(stubs, CREATE):
            here.execute(_INSERT[line.is_delayed], line.values)
        return line.id

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
        codec: str | Codec = "json",
        confirm: bool = True,
    ) -> MessageId:
        """As `send`, on an AsyncConnection or an AsyncSession."""
        check_async(here, "outbox.send_async")
        out = Outgoing(
            body, priority, delay, at, slot_basis=slot_basis, headers=headers, expires=expires,
            retry=retry, max_runtime=max_runtime,
        )  # fmt: skip
        line = self._line(topic, out, codec, confirm)
        await refuse_autocommit_async(here, _INSERT[line.is_delayed])
        with needing(stubs, CREATE):
            await here.execute(_INSERT[line.is_delayed], line.values)
        return line.id

    def _line(self, topic: str, out: Outgoing, codec: str | Codec, confirm: bool) -> _Line:
        chosen = codecs.by_name(codec) if isinstance(codec, str) else codecs.register(codec)
        # The very checks of a direct send. The prefix is the relay's, and matters to none of them.
        draft = make_draft(TopicContext("rmq", topic, chosen, _LANES, {}), _FREE, out)
        if len(draft.body) > self.max_body:
            raise PayloadTooLarge(
                f"body: {len(draft.body)} bytes as {chosen.name}; this outbox's max_body is "
                f"{self.max_body}. Send a reference to the data, or allow more in rmq.outbox.Outbox"
            )
        if not isinstance(confirm, bool):
            raise InvalidType(f"confirm: {confirm!r}; give True or False")
        delay_ms = 0 if out.delay is None else duration_ms(out.delay, "delay", zero=True)
        at_ms = 0 if out.at is None else check_epoch_ms(out.at, "at")
        made = ids.new_id()
        return _Line(
            made,
            {
                "id": str(made),
                "topic": topic,
                "slot_basis": _basis(draft.basis),
                "body": draft.body,
                "codec": chosen.number,
                "options": _options(out),
                "confirm": confirm,
                "wait_ms": delay_ms or at_ms,
                "first_ms": self.resend_after_ms(1),
            },
            bool(delay_ms),
        )


_LANES = ReplaySessions()


def _basis(value: str | bytes | None) -> bytes | None:
    if value is None:
        return None
    slot_of(value, 1)  # its check of the type
    return value.encode() if isinstance(value, str) else bytes(value)


def _options(out: Outgoing) -> str:
    """What was checked, in the units of the table; ASCII, so that every database keeps it."""
    found: dict[str, Any] = {}
    if out.priority is not None:
        found["priority"] = out.priority
    if out.headers:
        found["headers"] = dict(out.headers)
    if out.expires is not None:
        found["expires_ms"] = duration_ms(out.expires, "expires")
    if out.retry is not None:
        found["retry"] = parse_policy(out.retry).spell()
    if out.max_runtime is not None:
        found["max_runtime_ms"] = duration_ms(out.max_runtime, "max_runtime")
    return json.dumps(found, separators=(",", ":"))


def _insert(is_delayed: bool) -> sa.Insert:
    """A delay counts from the database's now; a time is what it is, and 0 is none."""
    wait = sa.bindparam("wait_ms", type_=sa.BigInteger)
    first = sa.bindparam("first_ms", type_=sa.BigInteger)
    due = now_ms() + wait if is_delayed else wait
    # What is due tomorrow is not lost today.
    begins = due if is_delayed else sa.case((wait > now_ms(), wait), else_=now_ms())
    return sa.insert(stubs).values(
        due_ms=due,
        created=now_ms(),
        resend_at=begins + first,
        status=UNCONFIRMED,
        sends=0,
    )  # the other columns are those of the values


_INSERT = {is_delayed: _insert(is_delayed).inline() for is_delayed in (False, True)}
