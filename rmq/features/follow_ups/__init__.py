"""Pending follow-ups of a topic: list, send and drop them."""
