"""The history of a topic: acked messages that can still be read."""
