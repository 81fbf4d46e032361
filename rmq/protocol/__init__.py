"""What is said to Redis: scripts, commands and flows. No sockets."""
