"""The catalogue of telemetry: every metric and every log event of RMQ.

The interceptors in `rmq.interceptors` emit them. Labels have few values; a message id is never one.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from rmq.core.lateness import BOUNDS_MS

Kind = Literal["counter", "histogram", "gauge"]

LABELS = {
    "topic": "a topic's name",
    "status": "stored, merged or duplicate",
    "error": "the class of an exception",
    "type": "a type that a handler of a worker of this process takes; other; empty: without one",
    "verb": "ack, nack, reject, release, lost or own, as rmq.Outcome has them",
    "queue": "where messages are: retries, priority, due, later, in_flight or dead",
    "event": "a counter of Admin.stats: accepted, delivered, settled and others",
    "service": "a service of rmq server",
}


class Metric(NamedTuple):
    """A metric.

    Attributes:
        name: the name under which it is exposed.
        kind: a counter only grows, a gauge goes up and down, a histogram counts into buckets.
        unit: of its value.
        labels: keys of LABELS.
        help: one line.
        buckets: upper bounds of a histogram, in its unit.
    """

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()


class Event(NamedTuple):
    """A log event, on the logger `rmq.messages`.

    Attributes:
        name: in the field `event` of its record.
        level: of `logging`, by name.
        fields: the other fields of its record.
        help: one line.
    """

    name: str
    level: Literal["INFO", "WARNING"]
    fields: tuple[str, ...]
    help: str


# --- metrics -------------------------------------------------------------------------------------

# A due message is in a handler within a millisecond or two; a day late is a backlog.
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
IN_HAND = Metric(
    "rmq_in_hand", "gauge", "deliveries", ("topic",),
    "Deliveries that the watched workers hold: waiting, running, or about to be settled.",
)  # fmt: skip
TAKEN = Metric(
    "rmq_taken_total", "counter", "deliveries", ("topic",),
    "Deliveries that the watched workers have taken since they were started.",
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
    LATENESS, HANDLER_SECONDS, HANDLED, SENT, SEND_ERRORS, IN_HAND, TAKEN, LEASE_LOST,
    DUPLICATES, CLAIM_LOST, AUDIT_MISSING,
)  # fmt: skip

# --- metrics of rmq server, which reads them in Redis ---------------------------------------------

MESSAGES = Metric(
    "rmq_messages", "gauge", "messages", ("topic", "queue"),
    "Messages that a topic holds, by where they are. Only the server that leads exposes it.",
)  # fmt: skip
OLDEST_DUE = Metric(
    "rmq_oldest_due_seconds", "gauge", "seconds", ("topic",),
    "How long the oldest message that may be taken waits: since it was due, failed or was sent.",
)  # fmt: skip
TAKE_LATENESS = Metric(
    "rmq_take_lateness_seconds", "histogram", "seconds", ("topic",),
    "Time from when a message was due (or sent, without a delay) until a consumer or worker took "
    "it; first attempts only, by the clock of that machine.",
    tuple(bound_ms / 1000 for bound_ms in BOUNDS_MS),
)  # fmt: skip
HELD_BACK = Metric(
    "rmq_held", "gauge", "messages", ("topic",),
    "Waiting messages that a pause or a limit of the topic holds back.",
)  # fmt: skip
PAUSED = Metric("rmq_paused", "gauge", "topics", ("topic",), "1 while receiving is paused.")
SENDS_PAUSED = Metric(
    "rmq_sends_paused", "gauge", "topics", ("topic",), "1 while sends are paused."
)
TOPICS_NOT_COUNTED = Metric(
    "rmq_server_topics_not_counted", "gauge", "topics", (),
    "Topics that have no series, since only the first 1000 by name have some.",
)  # fmt: skip
TOPIC_EVENTS = Metric(
    "rmq_topic_events_total", "counter", "messages", ("topic", "event"),
    "What happened to messages of a topic since it was created.",
)  # fmt: skip
SERVER_AUDIT_MISSING = Metric(
    "rmq_server_audit_missing", "gauge", "messages", ("topic",),
    "Messages that the last audit of this server found missing, in topics with numbered messages.",
)  # fmt: skip
LEADER = Metric("rmq_server_leader", "gauge", "servers", (), "1 where this server leads, else 0.")
SERVICE_IDLE = Metric(
    "rmq_server_service_idle_seconds", "gauge", "seconds", ("service",),
    "Time since a run of a service of this server last ended well.",
)  # fmt: skip
SERVICE_DONE = Metric(
    "rmq_server_service_done_total", "counter", "units", ("service",),
    "What a service of this server has done: leases given back, dead letters dropped, and so on.",
)  # fmt: skip
SERVICE_FAILURES = Metric(
    "rmq_server_service_failures_total", "counter", "runs", ("service",),
    "Runs of a service of this server that failed, and were tried again.",
)  # fmt: skip

SERVER_METRICS = (
    MESSAGES, OLDEST_DUE, TAKE_LATENESS, HELD_BACK, PAUSED, SENDS_PAUSED, TOPICS_NOT_COUNTED,
    TOPIC_EVENTS, SERVER_AUDIT_MISSING, LEADER, SERVICE_IDLE, SERVICE_DONE, SERVICE_FAILURES,
)  # fmt: skip

# --- events --------------------------------------------------------------------------------------

MESSAGE_SENT = Event(
    "sent", "INFO", ("topic", "message_id", "status", "slot", "type"),
    "A message was accepted; type where it has one.",
)  # fmt: skip
MESSAGE_NOT_SENT = Event(
    "not_sent", "WARNING", ("topic", "error_type", "error", "type"), "A send raised.",
)  # fmt: skip
MESSAGE_HANDLED = Event(
    "handled", "INFO",
    ("topic", "message_id", "attempt", "verb", "seconds", "late_seconds", "type"),
    "A handler has run and did not fail; late_seconds on a first attempt only.",
)  # fmt: skip
MESSAGE_FAILED = Event(
    "failed", "WARNING",
    ("topic", "message_id", "attempt", "verb", "seconds", "late_seconds", "type",
     "error_type", "error"),
    "A handler raised, or the message was rejected or lost; error_type and error where it raised.",
)  # fmt: skip

EVENTS = (MESSAGE_SENT, MESSAGE_NOT_SENT, MESSAGE_HANDLED, MESSAGE_FAILED)


def lateness_s(attempt: int, due_ms: int, made_ms: int, now_ms: float) -> float | None:
    """Return how late a handler starts, in seconds; None for a retry, whose due time is not kept.

    Args:
        attempt: 1 for the first.
        due_ms: when the message was due, epoch ms by the server's clock; 0: at once.
        made_ms: when it was sent, epoch ms by the sender's clock; it counts where `due_ms` is 0.
        now_ms: epoch ms by this machine's clock. Where clocks differ the result is off by that,
            and never below 0.
    """
    if attempt != 1:
        return None
    return max(0.0, now_ms - (due_ms or made_ms)) / 1000
