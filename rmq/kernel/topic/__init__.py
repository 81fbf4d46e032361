"""Parts of a topic that all calls use: its settings, slots, counts and messages."""
