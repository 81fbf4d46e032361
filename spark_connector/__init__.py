"""The Spark data source `rmq` will stand here, on RMQ's public API; nothing is shipped yet."""
