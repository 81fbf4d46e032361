"""Handlers: functions registered for the messages of a topic, and what they ask for."""
