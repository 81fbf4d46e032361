"""The doctor: checks of Redis and its topics, which change nothing."""
