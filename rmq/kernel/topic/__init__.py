"""What all calls use of a topic: its settings, slots, counts and messages."""
