"""The language of RMQ and Redis: scripts, commands and flows. No sockets."""
