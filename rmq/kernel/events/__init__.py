"""Events that suspended messages wait for: signal them, and deliver them to the messages."""
