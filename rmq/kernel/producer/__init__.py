"""Send messages: turn them into calls of scripts, and replies into results."""
