"""Register functions as handlers for the messages of a topic, and fill their parameters."""
