"""The ledger and the outbox: the features that need a database, through SQLAlchemy 2."""

from rmq.kernel.core.packages import load

# Before any module here imports it, so that the error names the extra that brings it.
load("sqlalchemy", "sql", "rmq.ledger and rmq.outbox")
