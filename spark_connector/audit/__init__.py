"""Find lost messages: compare a ledger of sent messages, a delivery log, and the queues.

The command `python -m spark_connector.audit` reads files. The function `audit` takes DataFrames.
docs/spark.md shows both.
"""

from spark_connector.audit.errors import UsageError
from spark_connector.audit.findings import Findings, Gap, Message, Minute
from spark_connector.audit.job import audit
from spark_connector.audit.words import (
    DEAD,
    DELIVERED,
    DUPLICATED,
    GAPS,
    IN_FLIGHT,
    LOST,
    PENDING,
    REDELIVERED,
    REMOVED,
    UNKNOWN,
    UNSENT,
    WAITING,
)

__all__ = [
    "DEAD",
    "DELIVERED",
    "DUPLICATED",
    "GAPS",
    "IN_FLIGHT",
    "LOST",
    "PENDING",
    "REDELIVERED",
    "REMOVED",
    "UNKNOWN",
    "UNSENT",
    "WAITING",
    "Findings",
    "Gap",
    "Message",
    "Minute",
    "UsageError",
    "audit",
]
