"""Adapters for programs of other frameworks. They use only RMQ's public names."""
