"""RMQ's worker beside other queues' in one run: `python -m bench.peers`, told in ../README.md."""
