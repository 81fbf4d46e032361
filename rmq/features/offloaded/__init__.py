"""Stored objects of offloaded bodies. RMQ removes objects that no message needs."""
