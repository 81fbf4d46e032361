"""Batches: messages that end together, and one message that is sent then."""
