"""Define every metric and every log event of RMQ: names, kinds, labels and units.

The interceptors in `rmq.interceptors` emit the metrics and the events. A label has few values, and
never a message id.

The module also counts how late messages are delivered. The lateness of a message is the time from
its due time to its delivery. Each consumer counts its deliveries in buckets of lateness. Every few
seconds, the consumer adds these counts to the counts of the topic. RMQ counts only first attempts,
because the due time of a retry is not stored.

The function `lateness_s` measures another time: from the due time until the handler begins.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

BUCKETS = 24
# Upper bounds of all buckets except the last: powers of 2 from 1 ms to 70 minutes.
BOUNDS_MS = tuple(1 << power for power in range(BUCKETS - 1))

Counts = tuple[int, ...]  # by bucket; empty if unknown
NONE: Counts = (0,) * BUCKETS


def total(counts: Iterable[Counts]) -> Counts:
    """Add up the counts of several slots of a topic, bucket by bucket.

    A missing bucket counts as 0.
    """
    return tuple(map(sum, zip(*(_filled(each) for each in counts), strict=True))) or NONE


def growth(now: Counts, before: Counts) -> Counts:
    """Return how much each bucket has grown between two readings.

    If a reading is unknown, the result is empty. If a counter was reset between the readings, its
    growth is 0.
    """
    if not now or not before:
        return ()
    return tuple(max(0, n - b) for n, b in zip(_filled(now), _filled(before), strict=True))


def percentile_s(counts: Counts, share: float) -> float | None:
    """Return a percentile of lateness, in seconds.

    The function interpolates within a bucket. The last bucket has no upper bound, so the function
    returns its lower bound.

    Args:
        counts: Deliveries per bucket.
        share: Share of the deliveries that were not later than the result, above 0 and at most 1.

    Returns:
        The lateness, or None if there are no deliveries.
    """
    rank, below = sum(counts) * share, 0
    for bucket, count in enumerate(counts):
        if count and below + count >= rank:
            low = BOUNDS_MS[bucket - 1] if bucket else 0
            high = BOUNDS_MS[bucket] if bucket < len(BOUNDS_MS) else low
            return (low + (high - low) * max(0.0, rank - below) / count) / 1000
        below += count
    return None


def read(stored: bytes) -> Counts:
    """Read the counts of late messages that Redis stores for a slot of a topic.

    If the slot has no counts, the result is empty.
    """
    return tuple(map(int, stored.split()))[:BUCKETS]


def _filled(counts: Counts) -> Counts:
    return counts + NONE[len(counts) :]


Kind = Literal["counter", "histogram", "gauge"]

LABELS = {
    "topic": "a topic's name",
    "status": "stored, merged or duplicate",
    "error": "the class of an exception",
    "type": "a message type with a handler in this process; other; empty: no type",
    "verb": "ack, nack, reject, release, lost or own, as in rmq.Outcome",
    "queue": "where messages are: retries, priority, due, later, in_flight or dead",
    "event": "a counter of Admin.stats: accepted, delivered, settled and others",
    "service": "a service of rmq server",
    "query": "a query that holds messages, by its name in rmq query ls",
    "version": "the version of RMQ, as in rmq.__version__",
}


class Metric(NamedTuple):
    """The definition of a metric.

    Attributes:
        name: Name under which the metric is exposed.
        kind: "counter" (only grows), "gauge" (goes up and down) or "histogram" (has buckets).
        unit: Unit of the value.
        labels: Names of the labels. `LABELS` explains them.
        help: Explanation in one line.
        buckets: Upper bounds of a histogram's buckets, in its unit.
    """

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()


class LogEvent(NamedTuple):
    """The definition of a log event, which the logger `rmq.messages` emits.

    Attributes:
        name: Value of the field `event` of the log record.
        level: Name of the level in `logging`.
        fields: The other fields of the log record.
        help: Explanation in one line.
    """

    name: str
    level: Literal["INFO", "WARNING"]
    fields: tuple[str, ...]
    help: str


# --- metrics -------------------------------------------------------------------------------------

# A due message is usually in a handler within 2 ms; a message that is a day late is in a backlog.
LATE = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30, 300, 3600, 86_400)
RUN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600)

LATENESS = Metric(
    "rmq_lateness_seconds", "histogram", "seconds", ("topic", "type"),
    "Time from when a message was due (or sent, without a delay) to the start of its handler; "
    "first attempts only, by this machine's clock.", LATE,
)  # fmt: skip
HANDLER_SECONDS = Metric(
    "rmq_handler_seconds", "histogram", "seconds", ("topic", "type"),
    "How long a run of a handler took.", RUN,
)  # fmt: skip
HANDLED = Metric(
    "rmq_handled_total", "counter", "messages", ("topic", "type", "verb"),
    "Messages for which a handler has run, by how they were settled.",
)  # fmt: skip
SENT = Metric(
    "rmq_sent_total", "counter", "messages", ("topic", "status"),
    "Messages that Redis has accepted.",
)  # fmt: skip
SEND_ERRORS = Metric(
    "rmq_send_errors_total", "counter", "messages", ("topic", "error"),
    "Messages whose send raised.",
)  # fmt: skip
IN_FLIGHT = Metric(
    "rmq_in_hand", "gauge", "deliveries", ("topic",),
    "Deliveries that the watched workers hold: waiting, running, or about to be settled.",
)  # fmt: skip
RECEIVED = Metric(
    "rmq_received_total", "counter", "deliveries", ("topic",),
    "Deliveries that the watched workers have received since they started.",
)  # fmt: skip
LEASE_LOST = Metric(
    "rmq_lease_lost_total", "counter", "deliveries", ("topic",),
    "Deliveries of the watched workers whose lease expired before they could be settled.",
)  # fmt: skip
DUPLICATES = Metric(
    "rmq_duplicates_total", "counter", "deliveries", ("topic",),
    "Deliveries of the watched workers that were acked because their work had been done before.",
)  # fmt: skip
CLAIM_LOST = Metric(
    "rmq_claim_lost_total", "counter", "deliveries", ("topic",),
    "Deliveries of the watched workers whose claim was gone when their work was done.",
)  # fmt: skip
AUDIT_MISSING = Metric(
    "rmq_audit_missing", "gauge", "messages", ("topic",),
    "Messages that the last audit of the watched workers found missing.",
)  # fmt: skip

METRICS = (
    LATENESS, HANDLER_SECONDS, HANDLED, SENT, SEND_ERRORS, IN_FLIGHT, RECEIVED, LEASE_LOST,
    DUPLICATES, CLAIM_LOST, AUDIT_MISSING,
)  # fmt: skip

# --- metrics of rmq server, read from Redis -------------------------------------------------------

MESSAGES = Metric(
    "rmq_messages", "gauge", "messages", ("topic", "queue"),
    "Messages of a topic, by state. Only the leading server exposes it.",
)  # fmt: skip
OLDEST_DUE = Metric(
    "rmq_oldest_due_seconds", "gauge", "seconds", ("topic",),
    "Wait of the oldest message that may be received, since it was due, failed or was sent.",
)  # fmt: skip
TAKE_LATENESS = Metric(
    "rmq_take_lateness_seconds", "histogram", "seconds", ("topic",),
    "Time from when a message was due (or sent, without a delay) until a consumer or worker "
    "received it; first attempts only, by the clock of that machine.",
    tuple(bound_ms / 1000 for bound_ms in BOUNDS_MS),
)  # fmt: skip
SLO = Metric(
    "rmq_topic_slo_seconds", "gauge", "seconds", ("topic",),
    "Longest lateness that the topic's slo allows; only topics with an slo.",
)  # fmt: skip
SLO_LATENESS = Metric(
    "rmq_topic_slo_lateness_seconds", "gauge", "seconds", ("topic",),
    "Lateness at the percentile of the topic's slo, of messages received in the last 5 "
    "minutes; if none was received, the wait of the oldest message.",
)  # fmt: skip
WORKERS_WANTED = Metric(
    "rmq_workers_wanted", "gauge", "processes", ("topic",),
    "Worker processes that the topic needs to meet its slo, as in rmq worker wanted.",
)  # fmt: skip
WORKERS_RUNNING = Metric(
    "rmq_workers_running", "gauge", "processes", ("topic",),
    "Worker processes that handle the topic, as they last reported.",
)  # fmt: skip
LONG_RUNS = Metric(
    "rmq_long_runs", "gauge", "runs", ("topic",),
    "Runs of handlers that take far longer than usual, and may hang, as in rmq doctor.",
)  # fmt: skip
HELD_BACK = Metric(
    "rmq_held", "gauge", "messages", ("topic",),
    "Waiting messages that a pause, a limit or their group holds back.",
)  # fmt: skip
GROUPS_PAUSED = Metric(
    "rmq_groups_paused", "gauge", "groups", ("topic",), "Groups that are paused."
)
GROUPS_HELD = Metric(
    "rmq_groups_held", "gauge", "groups", ("topic",),
    "Groups that are stopped since a message became a dead letter.",
)  # fmt: skip
PENDING = Metric(
    "rmq_pending", "gauge", "messages", ("topic",),
    "Follow-ups of the topic's acks that are not in their topic yet.",
)  # fmt: skip
PENDING_AGE = Metric(
    "rmq_pending_oldest_seconds", "gauge", "s", ("topic",),
    "Time since the ack of the oldest follow-up that is not in its topic yet.",
)  # fmt: skip
SUSPENDED = Metric(
    "rmq_suspended", "gauge", "messages", ("topic",), "Messages that wait for an event."
)
HISTORY_BYTES = Metric(
    "rmq_history_bytes", "gauge", "bytes", ("topic",),
    "Memory of the acked messages that the topic keeps in its history.",
)  # fmt: skip
BATCHES_OPEN = Metric(
    "rmq_batches_open", "gauge", "batches", (), "Batches whose callback has not been sent."
)
PAUSED = Metric("rmq_paused", "gauge", "topics", ("topic",), "1 while receiving is paused.")
SENDS_PAUSED = Metric(
    "rmq_sends_paused", "gauge", "topics", ("topic",), "1 while sends are paused."
)
TOPICS_NOT_COUNTED = Metric(
    "rmq_server_topics_not_counted", "gauge", "topics", (),
    "Topics without series: only the first 1000 by name have series.",
)  # fmt: skip
TOPIC_EVENTS = Metric(
    "rmq_topic_events_total", "counter", "messages", ("topic", "event"),
    "Messages of a topic by event, since the topic was created.",
)  # fmt: skip
SERVER_AUDIT_MISSING = Metric(
    "rmq_server_audit_missing", "gauge", "messages", ("topic",),
    "Messages that the last audit of this server found missing, in topics with numbered messages.",
)  # fmt: skip
QUERY_MESSAGES = Metric(
    "rmq_query_messages", "gauge", "messages", ("topic", "query"),
    "Messages that a query (Spark) holds.",
)  # fmt: skip
QUERY_OWNED = Metric(
    "rmq_query_owned", "gauge", "queries", ("query",), "1 while a driver runs the query, else 0."
)
QUERY_LAG = Metric(
    "rmq_query_lag_seconds", "gauge", "seconds", ("query",),
    "Wait of the oldest message that is not held, as the query's driver last reported.",
)  # fmt: skip
QUERY_ROWS = Metric(
    "rmq_query_rows_total", "counter", "messages", ("query",),
    "Messages in batches of the query since its driver started.",
)  # fmt: skip
QUERY_BYTES = Metric(
    "rmq_query_bytes_total", "counter", "bytes", ("query",),
    "Bytes of records and bodies that tasks of the query have read since its driver started.",
)  # fmt: skip
QUERY_BATCHES = Metric(
    "rmq_query_batches_total", "counter", "batches", ("query",),
    "Batches of the query since its driver started.",
)  # fmt: skip
QUERY_REPLAYS = Metric(
    "rmq_query_replays_total", "counter", "batches", ("query",),
    "Batches that the query has repeated since its driver started.",
)  # fmt: skip
QUERY_LAPSES = Metric(
    "rmq_query_lapses_total", "counter", "leases", ("query",),
    "How often the lease of the query may have expired since its driver started.",
)  # fmt: skip
QUERY_COMMANDS = Metric(
    "rmq_query_commands_total", "counter", "commands", ("query",),
    "Commands that the query's driver has sent to Redis; a script is one.",
)  # fmt: skip
QUERIES_NOT_COUNTED = Metric(
    "rmq_server_queries_not_counted", "gauge", "queries", (),
    "Queries without series: only the 100 that hold the most messages have series.",
)  # fmt: skip
LEADER = Metric("rmq_server_leader", "gauge", "servers", (), "1 if this server leads, else 0.")
BUILD = Metric(
    "rmq_build_info", "gauge", "servers", ("version",), "Always 1; its label is the version of RMQ."
)
SERVICE_IDLE = Metric(
    "rmq_server_service_idle_seconds", "gauge", "seconds", ("service",),
    "Time since a run of a service of this server last succeeded.",
)  # fmt: skip
SERVICE_DONE = Metric(
    "rmq_server_service_done_total", "counter", "units", ("service",),
    "Work done by a service of this server: leases given back, dead letters dropped, and so on.",
)  # fmt: skip
SERVICE_FAILURES = Metric(
    "rmq_server_service_failures_total", "counter", "runs", ("service",),
    "Failed runs of a service of this server; they are repeated.",
)  # fmt: skip

SERVER_METRICS = (
    MESSAGES, OLDEST_DUE, TAKE_LATENESS, SLO, SLO_LATENESS, WORKERS_WANTED,
    WORKERS_RUNNING, LONG_RUNS, HELD_BACK, GROUPS_PAUSED, GROUPS_HELD, PENDING, PENDING_AGE,
    SUSPENDED, HISTORY_BYTES, BATCHES_OPEN, PAUSED, SENDS_PAUSED,
    TOPICS_NOT_COUNTED,
    TOPIC_EVENTS, SERVER_AUDIT_MISSING, QUERY_MESSAGES, QUERY_OWNED, QUERY_LAG, QUERY_ROWS,
    QUERY_BYTES, QUERY_BATCHES, QUERY_REPLAYS, QUERY_LAPSES, QUERY_COMMANDS, QUERIES_NOT_COUNTED,
    LEADER, BUILD, SERVICE_IDLE, SERVICE_DONE, SERVICE_FAILURES,
)  # fmt: skip

# --- events --------------------------------------------------------------------------------------

MESSAGE_SENT = LogEvent(
    "sent", "INFO", ("topic", "message_id", "status", "slot", "type", "group"),
    "A message was accepted; type and group if it has them.",
)  # fmt: skip
MESSAGE_NOT_SENT = LogEvent(
    "not_sent", "WARNING", ("topic", "error_type", "error", "type", "group"), "A send raised.",
)  # fmt: skip
MESSAGE_HANDLED = LogEvent(
    "handled", "INFO",
    ("topic", "message_id", "attempt", "verb", "seconds", "late_seconds", "type", "group"),
    "A handler has run and did not fail; late_seconds on a first attempt only.",
)  # fmt: skip
MESSAGE_FAILED = LogEvent(
    "failed", "WARNING",
    ("topic", "message_id", "attempt", "verb", "seconds", "late_seconds", "type", "group",
     "error_type", "error"),
    "A handler raised, or the message was rejected or lost; error_type and error if it raised.",
)  # fmt: skip

EVENTS = (MESSAGE_SENT, MESSAGE_NOT_SENT, MESSAGE_HANDLED, MESSAGE_FAILED)


def lateness_s(attempt: int, due_ms: int, made_ms: int, now_ms: float) -> float | None:
    """Return how late a handler starts, in seconds.

    For a retry, the result is None, because Redis does not store the due time of a retry.

    Args:
        attempt: Number of the attempt, from 1.
        due_ms: Due time, epoch ms by the server's clock, or 0 if the message was due when it was
            sent.
        made_ms: Time of the send, epoch ms by the sender's clock. The function uses this time if
            `due_ms` is 0.
        now_ms: Current time, epoch ms by this machine's clock. If the clocks differ, the result is
            wrong by the difference, but it is never below 0.
    """
    if attempt != 1:
        return None
    return max(0.0, now_ms - (due_ms or made_ms)) / 1000
