"""Audits: compare the numbers of accepted messages with settled messages to find lost messages."""
