"""Send: turn messages into calls of scripts, and replies into results."""
