"""What needs a SQL database: the ledger and the outbox."""
