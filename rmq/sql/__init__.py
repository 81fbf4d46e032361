"""The ledger and the outbox. These features use a database through SQLAlchemy 2."""

from rmq.kernel.core.packages import load

# Check this before a module here imports SQLAlchemy, so that the error names the extra to install.
load("sqlalchemy", "sql", "rmq.ledger and rmq.outbox")
