"""A topic as every call needs it: its settings, slots, counts and messages."""
