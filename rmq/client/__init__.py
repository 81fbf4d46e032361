"""Clients, topics and administration; the blocking classes are generated."""
