"""Measure RMQ and a baseline in the same run: `python -m bench`; see README.md."""
