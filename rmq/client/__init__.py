"""Clients, topics and administration. Blocking classes are generated from async classes."""
