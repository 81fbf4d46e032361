"""Send messages: convert messages to calls of scripts, and replies to results."""
