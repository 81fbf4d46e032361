"""Handlers: functions registered for the messages of a topic, and their parameters."""
