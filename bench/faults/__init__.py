"""The fault matrix: which faults RMQ is tested with, what the tests found, and the table of it."""
