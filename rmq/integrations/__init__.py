"""Adapters that let programs of other frameworks run on RMQ. They use RMQ's public names only."""
