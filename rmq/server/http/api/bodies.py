"""The types of requests: the parts of paths, queries and bodies, with their bounds.

Bounds that RMQ itself checks, as those of a topic's settings, are left to it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from rmq.core.dead_letter_filter import TEXT_MAX
from rmq.core.job import JobVerb
from rmq.core.pause import PauseVerb
from rmq.core.queues import TRASH_KEEP_S

LIMIT_MOST = 500
BY = "HTTP API"  # who does something, where nobody says

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,128}$", max_length=128)]
MessageIdText = Annotated[str, Meta(pattern=r"^[0-9a-v]{26}$", min_length=26, max_length=26)]
Run = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$", min_length=32, max_length=32)]
Line = Annotated[str, Meta(max_length=500)]
Text = Annotated[str, Meta(min_length=1, max_length=200)]
Seconds = Annotated[float, Meta(ge=0, le=31_536_000)]
Limit = Annotated[int, Meta(ge=1, le=LIMIT_MOST)]
Slot = Annotated[int, Meta(ge=0, le=1023)]
CursorText = Annotated[str, Meta(max_length=500)]
FilterText = Annotated[str, Meta(max_length=TEXT_MAX)]
JobText = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,128}\.[0-9a-v]{8}$", max_length=137)]
PeekCursor = Annotated[str, Meta(max_length=4000)]  # has a place in each slot: enough for 100
Queue = Literal["store", "prepare", "dead"]
Reason = Literal["failed", "lease ran out", "rejected", "undecodable", "expired", "unhandled"]


class Request(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A part of a request; fields that it does not have are refused."""


# --- paths ---------------------------------------------------------------------------------------


class TopicPath(Request):
    """A topic."""

    topic: Name


class MessagePath(TopicPath):
    """A message of a topic."""

    id: MessageIdText


class SchedulePath(TopicPath):
    """A schedule of a topic."""

    name: Name


class JobPath(Request):
    """A job, as TOPIC.XXXXXXXX."""

    job: JobText


class QueryPath(TopicPath):
    """A query that holds messages of a topic."""

    run: Run


# --- queries -------------------------------------------------------------------------------------


class TopicsQuery(Request):
    """Which topics are listed."""

    limit: Limit = 100
    cursor: CursorText | None = None
    contains: Annotated[str, Meta(max_length=128)] | None = None


class PeekQuery(Request):
    """Which messages are shown."""

    queue: Queue = "store"
    slot: Slot | None = None
    limit: Limit = 50
    cursor: PeekCursor | None = None


class MessagesQuery(Request):
    """Which messages are listed."""

    queue: Queue = "store"
    slot: Slot | None = None
    limit: Limit = 50
    cursor: CursorText | None = None


class DeadQuery(Request):
    """Which dead letters are listed; a filter is such as: reason=failed and age>1h."""

    filter: FilterText | None = None
    slot: Slot | None = None
    limit: Limit = 50
    cursor: CursorText | None = None


class MessageQuery(Request):
    """How a message is shown; `whole`: with all of its body, of 16 MiB at most."""

    whole: bool = False


class LeasesQuery(Request):
    """Which messages in flight are listed."""

    slot: Slot | None = None
    limit: Limit = 100
    cursor: CursorText | None = None


class ExportQuery(Request):
    """Which dead letters are exported; `cursor`: that of the last line that came."""

    filter: FilterText | None = None
    cursor: Annotated[str, Meta(max_length=100)] | None = None


class TrashQuery(DeadQuery):
    """Which letters of the trash are listed; a filter is such as: reason=failed and body.n=1."""


class GroupsQuery(Request):
    """Which dead letters are grouped, and how many groups are listed."""

    filter: FilterText | None = None
    limit: Limit = 100


class HistoryQuery(Request):
    """Of which time: seconds before now, and seconds between two samples, a multiple of 10."""

    since: Annotated[float, Meta(ge=10, le=604_800)] = 3600
    step: Annotated[int, Meta(ge=10, le=604_800)] | None = None


class DeleteTopicQuery(Request):
    """How a topic is deleted: `confirm` is its name."""

    confirm: Name
    force: bool = False
    dry_run: bool = False


class SinkQuery(Request):
    """Which sink."""

    query: Text


class ClaimQuery(Request):
    """Which claim on a business key."""

    key: Text
    consumer: Text = "default"


class JobsQuery(Request):
    """Which jobs are listed."""

    topic: Name | None = None
    limit: Limit = 100
    cursor: CursorText | None = None


class AuditTrailQuery(Request):
    """Which lines of the audit trail are listed."""

    limit: Limit = 100
    cursor: CursorText | None = None


class AuditQuery(Request):
    """Messages that are audited: those accepted so many seconds ago."""

    older_than: Seconds = 60


class DoctorQuery(Request):
    """Checks that are made, by name, joined by commas; left out: all."""

    only: Annotated[str, Meta(pattern=r"^[a-z]+(-[a-z]+)*(,[a-z]+(-[a-z]+)*)*$")] | None = None


class OutcomesQuery(Request):
    """How many outcomes are listed."""

    limit: Limit = 100


# --- bodies --------------------------------------------------------------------------------------


class Nothing(Request):
    """Nothing has to be told: send {}."""


class Settings(Request):
    """Settings of a topic, as `rmq topic set` names them; durations in seconds, null: off."""

    slots: int | UnsetType = UNSET
    default_priority: int | UnsetType = UNSET
    timed_priority: int | Literal["first"] | UnsetType = UNSET
    lease: float | UnsetType = UNSET
    max_retries: int | UnsetType = UNSET
    retry: str | UnsetType = UNSET
    dedup_window: float | UnsetType | None = UNSET
    max_length: int | UnsetType | None = UNSET
    overflow: Literal["reject", "block", "drop_lowest"] | UnsetType = UNSET
    max_body: int | UnsetType = UNSET
    expires: float | UnsetType | None = UNSET
    on_expire: Literal["dead", "drop"] | UnsetType = UNSET
    durability: str | UnsetType = UNSET
    dead_retention: float | UnsetType | None = UNSET
    unhandled: float | UnsetType | None = UNSET
    limit: str | UnsetType | None = UNSET

    def given(self) -> dict[str, Any]:
        """Return those that were sent, as `Client.topic` takes them."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: value for name, value in values.items() if value is not UNSET}


class NewTopic(Request):
    """A topic to create."""

    name: Name
    settings: Settings = msgspec.field(default_factory=Settings)


class PauseTopic(Request):
    """A pause of a topic: of what, by whom, and why, for people to read."""

    verb: PauseVerb = "receive"
    by: Line = BY
    why: Line = ""


class ResumeTopic(Request):
    """The pauses that end."""

    verb: PauseVerb = "both"


class Resize(Request):
    """The number of slots: a multiple or a divisor of that which the topic has."""

    slots: Annotated[int, Meta(ge=1, le=1024)]
    dry_run: bool = False


class Send(Request):
    """A message to send; fields as of `rmq.Outgoing`.

    Attributes:
        body: any JSON; or give body_base64.
        body_base64: bytes, which consumers get as they are.
        codec: how a JSON body is written.
    """

    body: Any = UNSET
    body_base64: str | UnsetType = UNSET
    codec: Literal["json", "msgpack"] = "json"
    priority: int | None = None
    delay: Seconds | None = None
    at: datetime | None = None
    merge_key: str | None = None
    time_range: Seconds | None = None
    merge: Literal["first", "last", "collect"] = "first"
    extend: bool = False
    max_wait: Seconds | None = None
    slot_basis: str | None = None
    headers: dict[str, str] | None = None
    expires: Seconds | None = None
    id: MessageIdText | None = None
    dedup_key: str | None = None
    max_runtime: Seconds | None = None
    type: str | None = None


class Reschedule(Request):
    """When a message may be taken: `delay` in seconds, or `at`."""

    delay: Seconds | None = None
    at: datetime | None = None


class Priority(Request):
    """A priority: 17 to 1 048 575, larger first."""

    priority: int


class LetterConditions(Request):
    """Which letters of the trash, or dead letters; all conditions that are given must fit.

    Attributes:
        filter: as error~"timeout" and header.tenant=7 and body.order>100.
    """

    ids: Annotated[list[MessageIdText], Meta(max_length=1000)] | None = None
    reason: Reason | None = None
    type: str | None = None
    filter: FilterText | None = None

    def given(self) -> dict[str, Any]:
        """Return those that were sent, as Admin takes them."""
        values = {name: getattr(self, name, None) for name in _CONDITIONS}
        return {name: value for name, value in values.items() if value is not None}


class DeadLetterConditions(LetterConditions):
    """Which dead letters; all conditions that are given must fit.

    Attributes:
        older_than: dead for so many seconds.
        filter: as error~"timeout" and age>1h and body.order>100.
    """

    older_than: Seconds | None = None


_CONDITIONS = DeadLetterConditions.__struct_fields__


class Redrive(DeadLetterConditions):
    """Dead letters to send back, or to another topic.

    Attributes:
        to: that topic.
        rate: at most so many a second.
        dry_run: count, and show some.
    """

    to: Name | None = None
    rate: Annotated[float, Meta(gt=0)] | None = None
    dry_run: bool = False


class Restore(LetterConditions):
    """Letters of the trash to put back; `job`: those of that purge; `dry_run`: count, show some."""

    job: JobText | None = None
    dry_run: bool = False


class ImportedLetter(msgspec.Struct, kw_only=True):
    """A line of an export; fields that a send does not need are passed over.

    Attributes:
        codec: the number of one of RMQ's own codecs; for other ones use `rmq dlq import`.
        body_base64: the body as its codec wrote it; or give bodies_base64.
        bodies_base64: the same of a message that collected several.
    """

    id: MessageIdText
    codec: Annotated[int, Meta(ge=0, le=3)]
    body_base64: str | None = None
    bodies_base64: list[str] | None = None
    priority: int | None = None
    type: str | None = None
    headers: dict[str, str] | None = None


class Import(Request):
    """Exported dead letters to send: at most 500, and 1 MiB with the rest of the request."""

    letters: Annotated[list[ImportedLetter], Meta(max_length=LIMIT_MOST)]


class NewJob(DeadLetterConditions):
    """A redrive or purge that goes on by itself; without conditions, of all dead letters.

    Attributes:
        to: of a redrive: another topic to which they go.
        rate: at most so many a second.
        keep: of a purge: for how many seconds they can be restored; 0: not at all.
        confirm: of a purge: the topic's name.
        expected: how many there are, if that was counted.
        by: who starts it, for people to read.
    """

    verb: JobVerb = "redrive"
    to: Name | None = None
    rate: Annotated[float, Meta(gt=0)] | None = None
    keep: Seconds = TRASH_KEEP_S
    confirm: Name | None = None
    expected: Annotated[int, Meta(ge=0, lt=2**53)] | None = None
    by: Line = BY


class ChangeJob(Request):
    """The name of the person who changes a job, for people to read."""

    by: Line = BY


class ForgetMissing(Request):
    """Missing messages that are accounted for: those accepted so many seconds ago."""

    older_than: Seconds = 60


class Purge(DeadLetterConditions, kw_only=True):
    """Messages to delete; only "dead" can be filtered, and kept in the trash.

    Attributes:
        confirm: the topic's name.
        keep: for how many seconds dead letters can be restored, 24 h if it is not given; 0: they
            are deleted for good. Waiting messages always are.
        dry_run: count, and show some.
    """

    confirm: Name
    queue: Literal["store", "dead"]
    keep: Seconds | None = None
    dry_run: bool = False


class ReleaseQuery(Request):
    """How a query's messages are given back; `force`: also while a driver runs it."""

    force: bool = False
    dry_run: bool = False
