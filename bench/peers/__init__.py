"""Compare RMQ's worker with other queues in one run: `python -m bench.peers`; see ../README.md."""
