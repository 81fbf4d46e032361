"""Send: from a message to the call of a script, and to its result."""
