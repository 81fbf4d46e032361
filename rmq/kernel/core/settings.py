"""Define the settings of a topic: names, defaults, units, limits, and how Redis stores them.

The client that creates a topic decides its settings. A client that uses the topic later names only
the settings that it needs. If such a setting has another value in Redis, the client gets an error,
and RMQ changes nothing. `Admin.topic_set` changes settings while producers and consumers run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from shlex import quote
from typing import Any, Literal, TypedDict

from rmq.errors import FormatMismatch, InvalidType, InvalidValue, SettingsMismatch
from rmq.kernel.core import (
    dead_to as dead_tos,
    delivery_limits,
    layout as layouts,
    pause,
    retry as policies,
    slo as slos,
)
from rmq.kernel.core.body_limits import BODY_CEILING, BODY_DEFAULT, CALL_BYTES
from rmq.kernel.core.dead_to import DeadTo
from rmq.kernel.core.delivery_limits import Limit, Limits, parse_limits
from rmq.kernel.core.groups import OFF as NO_GROUPS, Groups, parse_groups
from rmq.kernel.core.history_limits import OFF as NO_HISTORY, History, parse_history
from rmq.kernel.core.keys import SLOTS_MAX
from rmq.kernel.core.layout import Layout
from rmq.kernel.core.pause import Pause
from rmq.kernel.core.retry import Exponential, Policy, RetryPolicy, parse_policy
from rmq.kernel.core.score import PRIORITY_MAX, PRIORITY_MIN
from rmq.kernel.core.slo import Slo
from rmq.kernel.core.validation import (
    EXACT_MAX,
    UNREADABLE,
    Duration,
    check_int,
    duration_ms,
    format_duration,
    one_of,
    parse_duration,
)

# The format of records, scores, members and keys; a client refuses a topic of another format.
FORMAT = 6
LEASE_MIN_MS, LEASE_MAX_MS = 1_000, 12 * 3_600_000
BATCH_MAX = 1_000
# Messages per call in a topic with groups: as much work for Redis as 1000 messages without groups.
GROUPED_MAX = 250
DEPTH_DEFAULT, DEPTH_CEILING = 1000, 1_000_000


@dataclass(frozen=True, slots=True)
class Replicated:
    """Makes a send wait until enough replicas have the message in memory.

    RMQ uses the Redis command WAIT.

    Args:
        n: Number of replicas that must have the message, 1 to 100.
        timeout: Longest wait for the replicas, seconds or timedelta, at most 60 s.
    """

    n: int = 1
    timeout: Duration = 1.0

    def __post_init__(self) -> None:
        check_int(self.n, "durability.n", 1, 100)
        duration_ms(self.timeout, "durability.timeout", high_ms=60_000)

    def to_redis(self) -> str:
        """Return the durability as the string that Redis stores."""
        return f"replicated:{self.n}:{duration_ms(self.timeout, 'timeout')}"


@dataclass(frozen=True, slots=True)
class Fsync:
    """Makes a send wait until enough disks have the message.

    RMQ uses the command WAITAOF, which needs Redis 7.2.

    Args:
        n: Number of replicas that must have the message on disk, 0 to 100. The server must always
            have the message on disk.
        timeout: Longest wait, seconds or timedelta, at most 60 s.
    """

    n: int = 0
    timeout: Duration = 1.0

    def __post_init__(self) -> None:
        check_int(self.n, "durability.n", 0, 100)
        duration_ms(self.timeout, "durability.timeout", high_ms=60_000)

    def to_redis(self) -> str:
        """Return the durability as the string that Redis stores."""
        return f"fsync:{self.n}:{duration_ms(self.timeout, 'timeout')}"


Durability = Replicated | Fsync | None
_LEVELS: dict[str, type[Replicated | Fsync]] = {"replicated": Replicated, "fsync": Fsync}


def parse_durability(value: object) -> Durability:
    """Return the durability for "memory" or a string such as "replicated:1:500ms".

    If the argument is a durability object, return it unchanged. A duration in the string is in
    seconds, or has a unit.
    """
    if value is None or value == "memory":
        return None
    if isinstance(value, Replicated | Fsync):
        return value
    if isinstance(value, str):
        kind, *rest = value.strip().split(":")
        if kind in _LEVELS and len(rest) <= 2 and (not rest or rest[0].isdecimal()):
            try:
                timeouts = [parse_duration(text) for text in rest[1:]]
            except ValueError as error:
                raise InvalidValue(f"durability: {error}") from None
            return _LEVELS[kind](*[int(text) for text in rest[:1]], *timeouts)
    raise InvalidValue(
        f"durability: {value!r} is not a durability; give memory, "
        "replicated[:N[:TIMEOUT]] or fsync[:N[:TIMEOUT]], as "
        "replicated:1:500ms, or rmq.Replicated(n, timeout), rmq.Fsync(n, timeout)"
    )


def describe_durability(value: Durability) -> str:
    """Return a durability as the string that `parse_durability` reads."""
    if value is None:
        return "memory"
    kind = "replicated" if isinstance(value, Replicated) else "fsync"
    return f"{kind}:{value.n}:{format_duration(value.timeout)}"


def _read_durability(text: str) -> Durability:
    if text == "memory":
        return None
    try:
        kind, number, timeout_ms = text.split(":")
        return _LEVELS[kind](int(number), int(timeout_ms) / 1000)
    except (KeyError, ValueError):
        raise InvalidValue(
            f"durability: {text!r} in Redis is not a level that this RMQ knows"
        ) from None


def parse_timed_priority(value: object) -> int:
    """Read the setting `timed_priority` from a number or a string. The string "first" means 0."""
    if value == "first":
        return 0
    if isinstance(value, str):
        if not value.isdecimal():
            raise InvalidValue(
                f"timed_priority: {value!r}; give first, or a priority, {PRIORITY_MIN} to "
                f"{PRIORITY_MAX}"
            )
        value = int(value[:20])
    return check_int(value, "timed_priority", PRIORITY_MIN, PRIORITY_MAX)


def _off_or(value: object, field_name: str, low_ms: int = 1) -> int:
    return 0 if value is None else duration_ms(value, field_name, low_ms=low_ms, zero=True)


class TopicSettings(TypedDict, total=False):
    """The settings of a topic, as callers give them.

    Durations are seconds or a timedelta. None turns off a setting that can be off. The class
    `Settings` describes each setting.
    """

    slots: int
    default_priority: int
    timed_priority: int | Literal["first"]
    lease: Duration
    max_retries: int
    retry: RetryPolicy | str
    dedup_window: Duration | None
    max_length: int | None
    overflow: Literal["reject", "block", "drop_lowest"]
    max_body: int
    expires: Duration | None
    on_expire: Literal["dead", "drop"]
    durability: Durability | str
    dead_retention: Duration | None
    unhandled: Duration | None
    limit: Limit | Limits | Sequence[Limit] | str | None
    slo: str | None
    groups: Groups | str | None
    max_depth: int | None
    dead_to: str | None
    history: History | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a topic.

    Durations are in ms here. Callers give them in seconds or as timedelta.

    Attributes:
        slots: Number of slots, 1 to 1024. Messages are ordered only within a slot.
        default_priority: Priority of a message sent without a priority, 17 to 1 048 575.
        timed_priority: Priority that a message with a due time and without a priority gets when it
            is due, 17 to 1 048 575. It also applies to merged messages. With 0, due messages are
            delivered before all priorities.
        lease_ms: Time in which a consumer must settle a delivery or extend its lease, 1 s to 12 h.
            After this time, RMQ rolls the delivery back.
        max_retries: Number of retries before a message becomes a dead letter, 0 to 16.
        retry: Retry policy, which sets the wait before each retry. An immediate retry sorts after
            all prioritized messages.
        dedup_window_ms: Time for which RMQ remembers the id of a settled message. With 0, a
            repeated send of a settled message stores the message again. With 0, a merging message
            may also collect the body of a repeated send twice.
        max_length: Largest number of waiting messages, or 0 for no limit. RMQ divides this number
            among the slots.
        overflow: How a send behaves at `max_length`: "reject", "block" or "drop_lowest".
            "drop_lowest" drops waiting messages of lower priority than the new message. It never
            drops retries, or timed messages before they are due. If a slot has too many messages,
            each send drops up to 1000 of them.
        max_body: Largest encoded body, bytes.
        expires_ms: Time after the due time within which a message may be delivered, or 0 for no
            limit.
        on_expire: "dead" makes an expired message a dead letter, "drop" removes it.
        durability: Where a message must be stored before its send returns: in memory, on replicas,
            or on disks.
        dead_retention_ms: Time for which Redis stores a dead letter. With 0, Redis stores it until
            it is redriven or purged. RMQ drops and counts older dead letters when a further message
            becomes a dead letter, or when a command reads dead letters. Consumers also drop them
            once a minute.
        unhandled_ms: How long a message waits after its due time if no worker has a handler for its
            type. After this time, the message becomes a dead letter. 0 means no limit.
        limit: Maximum number of messages delivered per period, and maximum number of messages in
            flight. RMQ divides both among the slots.
        slo: Objective for the lateness of deliveries, such as "p99<2s", or "off". The objective
            does not change the order of delivery. The doctor, the console, metrics and alerts show
            when the objective is missed.
        groups: How RMQ delivers messages with a group. With None, the group of a message is only a
            label.
        max_depth: Maximum length of a chain of follow-ups, or 0 for no limit. The setting of the
            acked message's topic applies. If a follow-up would make the chain too long, the message
            with this follow-up becomes a dead letter.
        dead_to: Topic that gets a copy of each dead letter of this topic, or None. Redis stores the
            copy in the same step.
        history: Which acked messages stay readable, or None if RMQ deletes acked messages.
        paused: Pause of deliveries, set by `Admin.topic_pause`, or None.
        sends_paused: Pause of sends, or None.
        layout: Earlier numbers of slots, or None if the topic was never resized.
    """

    slots: int = 1
    default_priority: int = 100
    timed_priority: int = 0
    lease_ms: int = 30_000
    max_retries: int = 16
    retry: Policy = field(default_factory=Exponential)
    dedup_window_ms: int = 60_000
    max_length: int = 0
    overflow: str = "reject"
    max_body: int = BODY_DEFAULT
    expires_ms: int = 0
    on_expire: str = "dead"
    durability: Durability = None
    dead_retention_ms: int = 0
    unhandled_ms: int = 3_600_000
    limit: Limits = field(default_factory=Limits)
    slo: str = slos.OFF
    groups: Groups | None = None
    max_depth: int = DEPTH_DEFAULT
    dead_to: DeadTo | None = None
    history: History | None = None
    paused: Pause | None = None
    sends_paused: Pause | None = None
    layout: Layout | None = None

    def __post_init__(self) -> None:
        """Check that the settings do not contradict each other."""
        self.limit.check_slots(self.all_slots)
        if self.groups and self.overflow == "drop_lowest":
            raise InvalidValue(
                "overflow: drop_lowest in a topic with groups; its held messages have no common "
                "order, so none is the lowest: give reject or block"
            )
        if self.groups and self.limit.key_concurrency:
            raise InvalidValue(
                "limit: a concurrency for each key in a topic with groups; the groups have it: "
                "send with group= and give groups=rmq.Groups(order=False, concurrency=...)"
            )

    @property
    def objective(self) -> Slo | None:
        """The objective for the lateness of deliveries, or None."""
        return slos.parse(self.slo)

    def in_slot_order(self, ordered: bool) -> bool:
        """Return whether a consumer handles each slot in order.

        If the topic has groups, the result is False, because RMQ then keeps the order within each
        group.

        Args:
            ordered: Option `ordered` of the consumer.

        Raises:
            InvalidValue: The topic allows several messages of a group in flight at a time.
        """
        if not ordered or self.groups is None:
            return ordered
        if not self.groups.order:
            raise InvalidValue(
                f"ordered: this topic delivers up to {self.groups.concurrency} messages of a group "
                "at a time; leave ordered out, or create a topic with groups=rmq.Groups(order=True)"
            )
        return False

    @property
    def call_max(self) -> int:
        """The largest number of messages that a script stores or settles in one call."""
        return GROUPED_MAX if self.groups else BATCH_MAX

    @property
    def all_slots(self) -> int:
        """The number of slots that may have messages.

        This is the largest number of slots that the topic has ever had.
        """
        return max(self.slots, self.layout.most) if self.layout else self.slots

    @property
    def first_slots(self) -> int:
        """The number of slots when the topic was created.

        This number selects the slots of dedup keys and claims.
        """
        return self.layout.first if self.layout else self.slots

    @property
    def slot_numbers(self) -> tuple[int, ...]:
        """Every number of slots that the topic has had, the current number first."""
        past = (self.layout.first, self.layout.most, *self.layout.numbers) if self.layout else ()
        return tuple(dict.fromkeys((self.slots, *past)))

    def slot_stamp(self, created: bytes) -> bytes:
        """Return the creation time that Redis stores for the slots.

        This is the topic's creation time, plus 1 µs for each resize.
        """
        resizes = self.layout.resizes if self.layout else 0
        return str(int(created) + resizes).encode() if resizes else created

    def to_redis(self) -> dict[str, str]:
        """Return the settings as fields of the topic's hash."""
        return {"format": str(FORMAT)} | to_redis({name: getattr(self, name) for name in NAMES})

    def for_slot(self, index: int = 0) -> dict[str, str]:
        """Return the settings as fields for the hash of one slot of the topic."""
        layout, parts = self.layout, self.layout or Layout(0, self.slots, self.slots)
        paused = str(self.paused.since_ms) if self.paused else ""
        delivered_from = layout.delivered_from if layout and index < self.slots else 0
        if layout and layout.resizing and layout.is_blocked(index, self.slots):
            paused = paused or str(layout.resizing.since_ms)
        optional = {
            "paused": paused,
            "paused_send": str(self.sends_paused.since_ms) if self.sends_paused else "",
            "limit": self.limit.of_slot(index, self.slots, parts),
            "groups": self.groups.of_slot() if self.groups else "",
            "timed_priority": str(
                self.timed_priority or (self.default_priority if self.groups else "")
            ),
            "resizes": str(layout.resizes) if layout else "",
            "dead_to": self.dead_to.of_slot(index) if self.dead_to else "",
            "history": self.history.of_slot(index, self.slots, parts) if self.history else "",
            "delivered_from": str(delivered_from or ""),
        }
        return {name: value for name, value in optional.items() if value} | {
            "max_retries": str(self.max_retries),
            "retry": ",".join(str(wait) for wait in self.retry.ladder(self.max_retries)) or "0",
            "jitter": str(round(self.retry.jitter * 100)),
            "dedup_ms": str(self.dedup_window_ms),
            "capacity": str(parts.capacity(self.max_length, index, self.slots)),
            "overflow": self.overflow,
            "chunk": str(max(1, min(1000, CALL_BYTES // self.max_body))),
            "on_expire": self.on_expire,
            "dead_retention_ms": str(self.dead_retention_ms),
        }

    def shown(self) -> dict[str, Any]:
        """Return the settings for people and JSON, with public names. Durations are in seconds."""
        settings: dict[str, Any] = {}
        for public, (name, _) in _CHECKS.items():
            value = getattr(self, name)
            if name.endswith("_ms"):
                settings[public] = value / 1000
            elif isinstance(value, int | str) and name != "timed_priority":
                settings[public] = value
            else:
                settings[public] = _describe(name, value)
        return settings


_STATE = ("paused", "sends_paused", "layout")
NAMES = tuple(name for name in Settings.__dataclass_fields__ if name not in _STATE)

# Public name -> (field, check): the name of each setting and its allowed values.
_CHECKS: dict[str, tuple[str, Any]] = {
    "slots": ("slots", lambda v: check_int(v, "slots", 1, SLOTS_MAX)),
    "default_priority": (
        "default_priority",
        lambda v: check_int(v, "default_priority", PRIORITY_MIN, PRIORITY_MAX),
    ),
    "timed_priority": ("timed_priority", parse_timed_priority),
    "lease": ("lease_ms", lambda v: duration_ms(v, "lease", LEASE_MIN_MS, LEASE_MAX_MS)),
    "max_retries": ("max_retries", lambda v: check_int(v, "max_retries", 0, 16)),
    "retry": ("retry", parse_policy),
    "dedup_window": ("dedup_window_ms", lambda v: _off_or(v, "dedup_window", 1000)),
    "max_length": (
        "max_length",
        lambda v: 0 if v is None else check_int(v, "max_length", 0, 1_000_000_000),
    ),
    "overflow": ("overflow", lambda v: one_of(v, "overflow", ("reject", "block", "drop_lowest"))),
    "max_body": ("max_body", lambda v: check_int(v, "max_body", 1, BODY_CEILING)),
    "expires": ("expires_ms", lambda v: _off_or(v, "expires")),
    "on_expire": ("on_expire", lambda v: one_of(v, "on_expire", ("dead", "drop"))),
    "durability": ("durability", parse_durability),
    "dead_retention": ("dead_retention_ms", lambda v: _off_or(v, "dead_retention", 1000)),
    "unhandled": ("unhandled_ms", lambda v: _off_or(v, "unhandled", 1000)),
    "limit": ("limit", parse_limits),
    "slo": ("slo", slos.check),
    "groups": ("groups", parse_groups),
    "max_depth": (
        "max_depth",
        lambda v: 0 if v is None else check_int(v, "max_depth", 0, DEPTH_CEILING),
    ),
    "dead_to": ("dead_to", dead_tos.parse),
    "history": ("history", parse_history),
}
PUBLIC = tuple(_CHECKS)
# Settings that topics of an older version do not have, and their text.
_LATER = {
    "slo": slos.OFF, "groups": NO_GROUPS, "max_depth": str(DEPTH_DEFAULT), "dead_to": dead_tos.OFF,
    "history": NO_HISTORY,
}  # fmt: skip
_PUBLIC = {name: public for public, (name, _) in _CHECKS.items()}

# Settings that `topic_set` cannot change, and why.
FIXED = {
    "slots": "messages with one slot_basis share a slot, and must keep their order",
    "groups": "waiting messages are already queued with or without groups",
}

CHANGEABLE = tuple(name for name in PUBLIC if name not in FIXED)


def _to_redis(name: str, value: Any) -> str:
    if value is None:
        return "memory" if name == "durability" else "off"
    return value.to_redis() if hasattr(value, "to_redis") else str(value)


def _comparable(name: str, value: Any) -> Any:
    return str(value) if name == "dead_to" else _to_redis(name, value)


def _describe(name: str, value: Any) -> Any:
    if name == "timed_priority":
        return value or "first"
    if name.endswith("_ms"):
        return format_duration(value / 1000) if value else "off"
    if name == "retry":
        return policies.describe(value)
    if name in ("groups", "dead_to", "history"):
        return str(value or "off")
    return describe_durability(value) if name == "durability" else str(value)


def check(requested: Mapping[str, object]) -> dict[str, Any]:
    """Check the settings that a caller gives, and return their values by field name.

    Raises:
        InvalidValue: A value is out of range.
        InvalidType: A value has the wrong type, or a setting does not exist.
    """
    checked = {}
    for name, value in requested.items():
        if name not in _CHECKS:
            raise InvalidType(f"{name}: there is no such setting; known are {', '.join(PUBLIC)}")
        target, check = _CHECKS[name]
        checked[target] = check(value)
    return checked


def from_redis(topic: str, stored: Mapping[str, str]) -> Settings:
    """Read the settings of a topic from its hash.

    Raises:
        FormatMismatch: The topic was created by a version of RMQ that writes another format.
    """
    if stored.get("format") != str(FORMAT):
        raise FormatMismatch(
            f"topic {topic!r} has format {stored.get('format') or 'none'}, and this RMQ reads "
            f"format {FORMAT}; nothing was changed. Install the version that wrote it, or use "
            "another name or prefix"
        )
    try:
        return _read_settings(stored)
    except UNREADABLE as error:
        raise FormatMismatch(
            f"topic {topic!r} has settings that this RMQ cannot read ({ascii(error)[:200]}); "
            "nothing was changed. See who wrote them; correct the hash of the topic, or delete it"
        ) from error


def _read_settings(stored: Mapping[str, str]) -> Settings:
    values: dict[str, Any] = {}
    for name in NAMES:
        text = stored.get(name, _LATER[name]) if name in _LATER else stored[name]
        if name == "retry":
            values[name] = policies.from_redis(text)
        elif name == "durability":
            values[name] = _read_durability(text)
        elif name == "limit":
            values[name] = delivery_limits.from_redis(text)
        elif name == "dead_to":
            values[name] = dead_tos.from_redis(text)
        elif name in ("groups", "history", "slo", "overflow", "on_expire"):
            values[name] = _CHECKS[name][1](text)
        elif name in ("slots", "max_retries", "max_length", "max_body", "max_depth"):
            values[name] = _CHECKS[name][1](int(text))
        else:
            values[name] = check_int(int(text), name, 0, EXACT_MAX)
    layout = layouts.from_redis(stored)
    for slots in (layout.first, layout.most) if layout else ():
        check_int(slots, "layout", 1, SLOTS_MAX)
    for name in ("created", "revision"):
        check_int(int(stored.get(name, 0)), name, 0, EXACT_MAX)
    return Settings(
        **values,
        paused=pause.from_redis(stored, "receive"),
        sends_paused=pause.from_redis(stored, "send"),
        layout=layout,
    )


def check_changes(requested: Mapping[str, object]) -> dict[str, Any]:
    """Check changes of settings, and return the new values by field name.

    Raises:
        InvalidValue: No setting is given, a setting is fixed, or a value is out of range.
        InvalidType: A value has the wrong type, or a setting does not exist.
    """
    if not requested:
        raise InvalidValue(f"settings: no setting is given; give {', '.join(CHANGEABLE)}")
    for name in requested:
        if name in FIXED:
            remedy = "Create another topic, and move producers and then consumers to it"
            if name == "slots":
                remedy = "Use rmq topic resize, or Admin.topic_resize"
            raise InvalidValue(
                f"{name}: it cannot be changed here, because {FIXED[name]}. {remedy}"
            )
    return check(requested)


def to_redis(values: Mapping[str, Any]) -> dict[str, str]:
    """Return settings as fields of the topic's hash."""
    return {name: _to_redis(name, value) for name, value in values.items()}


def check_matches(topic: str, requested: Mapping[str, Any], actual: Settings) -> None:
    """Raise an error if the topic's settings differ from the settings that the caller gave.

    Raises:
        SettingsMismatch: Settings differ. The error shows both values of each setting.
    """
    differences = {
        name: f"{_describe(name, getattr(actual, name))} for {_PUBLIC[name]} in Redis and "
        f"{_describe(name, value)} in settings"
        for name, value in requested.items()
        if _comparable(name, getattr(actual, name)) != _comparable(name, value)
    }
    if differences:
        slots = actual.slots, requested.get("slots", 1)
        options = "".join(
            f" --{_PUBLIC[name].replace('_', '-')} {quote(str(_describe(name, requested[name])))}"
            for name in differences
            if _PUBLIC[name] not in FIXED
        )
        remedy = f"change it (rmq topic set {topic}{options}), " if options else ""
        if "slots" in differences and not max(slots) % min(slots):
            remedy += f"change the number of slots (rmq topic resize {topic} {slots[1]}), "
        raise SettingsMismatch(
            f"topic {topic!r} has {'; '.join(differences.values())}; leave the setting out to use "
            f"what is there, {remedy}or use another topic name"
        )
