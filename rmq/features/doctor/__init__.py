"""The doctor, which checks Redis and all topics and changes nothing."""
