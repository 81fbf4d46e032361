"""The doctor: checks of a Redis and of its topics. It changes nothing."""
