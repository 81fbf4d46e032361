"""Did we lose anything? A ledger of what was sent, a log of what was delivered, and the queues.

`python -m spark_connector.audit` compares them; `audit` does it on DataFrames. See docs/spark.md.
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
