"""Send follow-ups.

A follow-up is a message that the ack of another message stores in the same step.
"""
