"""Measure RMQ against a yardstick in the same run: `python -m bench`, told in README.md."""
