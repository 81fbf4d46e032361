"""Audits: numbers of accepted and settled messages, and which are missing."""
