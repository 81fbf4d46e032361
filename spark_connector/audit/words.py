"""The words of an audit: what a message can be, what a log may say of it, and which columns count.

No Spark here.
"""

from __future__ import annotations

from typing import Final

# --- what each message is, exactly one of these ------------------------------------------------

DELIVERED: Final = "delivered"  # acked once, or settled by its handler, or confirmed to the outbox
DUPLICATED: Final = "duplicated"  # acked more than once
REMOVED: Final = "removed"  # somebody took it out, and the log says so
DEAD: Final = "dead"
IN_FLIGHT: Final = "in_flight"
WAITING: Final = "waiting"
PENDING: Final = "pending"  # younger than the horizon: too early to say
UNSENT: Final = "unsent"  # a row of the outbox that was never sent
LOST: Final = "lost"  # sent, not settled, in no queue
UNKNOWN: Final = "unknown"  # delivered, and not in the ledger

STATUSES: Final = (
    DELIVERED, DUPLICATED, REMOVED, DEAD, IN_FLIGHT, WAITING, PENDING, UNSENT, LOST, UNKNOWN,
)  # fmt: skip
# What a person has to look at, the worst first; the report lists their ids.
LISTED: Final = (LOST, DUPLICATED, UNSENT, UNKNOWN, DEAD)

# --- what stops a scheduler --------------------------------------------------------------------

GAPS: Final = "gaps"
REDELIVERED: Final = "redelivered"  # handed over more than once, acked once: as promised
FAULTS: Final = (LOST, DUPLICATED, GAPS, UNKNOWN, UNSENT, DEAD, REDELIVERED)
FAULTS_DEFAULT: Final = (LOST, DUPLICATED, GAPS)

# --- what a delivery log may say ---------------------------------------------------------------

ACK: Final = "ack"
OWN: Final = "own"  # the handler settled it by itself, one way or another
REJECT: Final = "reject"
TAKEN_OUT: Final = ("cancel", "purge", "expire", "merge")
OPEN: Final = ("nack", "release", "lost", "")  # it will come again
OUTCOMES: Final = (ACK, OWN, REJECT, *TAKEN_OUT, *OPEN)

QUEUES: Final = ("store", "prepare", "dead")

# --- columns -----------------------------------------------------------------------------------

# For each input: what it must have, and what it may have.
LEDGER: Final = (("message_id", "topic", "produced_at"), ("producer", "seq", "slot", "epoch"))
DELIVERIES: Final = (("message_id", "topic", "delivered_at"), ("slot", "attempt", "outcome"))
SNAPSHOT: Final = (("message_id", "topic", "queue"), ("slot", "taken_at"))
OUTBOX: Final = (("id", "topic", "status", "sends", "created"), ("confirm", "slot", "sent_at"))
