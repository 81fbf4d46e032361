"""Batches: messages that end together, and the callback that is sent then."""
