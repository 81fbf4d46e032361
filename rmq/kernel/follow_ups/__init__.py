"""Send follow-ups: messages that are stored in the same step as the ack of another message."""
