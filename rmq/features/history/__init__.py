"""The history of a topic: acked messages that you can still read."""
