"""Clients, topics and administration. The blocking classes are generated from the async ones."""
