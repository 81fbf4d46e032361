"""Define the words of an audit: statuses of messages, outcomes in a log, and column names.

This module does not use Spark.
"""

from __future__ import annotations

from typing import Final

# --- classes: each message is in exactly one ---------------------------------------------------

DELIVERED: Final = "delivered"  # acked once, settled by its handler, or confirmed in the outbox
DUPLICATED: Final = "duplicated"  # acked more than once
REMOVED: Final = "removed"  # removed from its queue, according to the log
DEAD: Final = "dead"
IN_FLIGHT: Final = "in_flight"
WAITING: Final = "waiting"
PENDING: Final = "pending"  # sent after the horizon, so it is too early to judge
UNSENT: Final = "unsent"  # a row of the outbox that was never sent
LOST: Final = "lost"  # sent, not settled, in no queue
UNKNOWN: Final = "unknown"  # delivered, but not in the ledger

STATUSES: Final = (
    DELIVERED, DUPLICATED, REMOVED, DEAD, IN_FLIGHT, WAITING, PENDING, UNSENT, LOST, UNKNOWN,
)  # fmt: skip
# Classes whose message ids are listed in the report, the worst class first.
LISTED: Final = (LOST, DUPLICATED, UNSENT, UNKNOWN, DEAD)

# --- faults: classes that may give exit code 1 -------------------------------------------------

GAPS: Final = "gaps"
# Delivered more than once but acked once, which at-least-once delivery allows.
REDELIVERED: Final = "redelivered"
FAULTS: Final = (LOST, DUPLICATED, GAPS, UNKNOWN, UNSENT, DEAD, REDELIVERED)
FAULTS_DEFAULT: Final = (LOST, DUPLICATED, GAPS)

# --- outcomes in a delivery log ----------------------------------------------------------------

ACK: Final = "ack"
OWN: Final = "own"  # the handler settled the message itself, with any verb
REJECT: Final = "reject"
TAKEN_OUT: Final = ("cancel", "purge", "expire", "merge")
OPEN: Final = ("nack", "release", "lost", "")  # outcomes after which the message is delivered again
OUTCOMES: Final = (ACK, OWN, REJECT, *TAKEN_OUT, *OPEN)

QUEUES: Final = ("store", "prepare", "dead")

# --- columns -----------------------------------------------------------------------------------

# For each input: required columns, optional columns.
LEDGER: Final = (("message_id", "topic", "produced_at"), ("producer", "seq", "slot", "epoch"))
DELIVERIES: Final = (("message_id", "topic", "delivered_at"), ("slot", "attempt", "outcome"))
SNAPSHOT: Final = (("message_id", "topic", "queue"), ("slot", "taken_at"))
OUTBOX: Final = (("id", "topic", "status", "sends", "created"), ("confirm", "slot", "sent_at"))
