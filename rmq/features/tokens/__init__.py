"""Tokens of the HTTP API, and sessions of browsers."""
