"""Find lost messages.

An audit compares a ledger of sent messages, a delivery log, and the queues. Use the command `python
-m spark_connector.audit` for files, and the function `audit` for DataFrames. docs/spark.md has
examples of both.
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
