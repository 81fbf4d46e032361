"""The commands `rmq dlq` and `rmq purge`."""
