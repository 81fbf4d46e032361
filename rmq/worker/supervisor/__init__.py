"""The supervisor starts, checks and replaces several worker processes."""
