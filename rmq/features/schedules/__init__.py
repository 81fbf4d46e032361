"""Schedules, which send messages at recurring times."""
