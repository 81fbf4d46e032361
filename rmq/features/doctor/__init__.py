"""The doctor: checks of a Redis and of the topics in it; nothing is changed."""
