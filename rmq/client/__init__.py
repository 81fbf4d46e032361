"""Clients, topics, consumers and administration; the blocking classes are generated."""
