"""Audits, which find lost messages."""
