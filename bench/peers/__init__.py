"""RMQ's worker and other queues in one run: `python -m bench --only peers`; see ../README.md."""
