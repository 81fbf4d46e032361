"""The fault matrix: the faults that RMQ is tested with, the results of the tests, and its table."""
