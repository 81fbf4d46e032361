"""Audits: find lost messages by comparing numbers of accepted, settled and stored messages."""
