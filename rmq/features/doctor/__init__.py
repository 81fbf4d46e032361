"""The doctor: checks of a Redis and of its topics; it changes nothing."""
