"""`rmq dlq` and `rmq purge`."""
