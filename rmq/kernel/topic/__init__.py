"""What every call needs to know of a topic: its settings, slots, counts and messages."""
