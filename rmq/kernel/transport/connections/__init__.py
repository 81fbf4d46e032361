"""Connections to servers, and pools of connections.

pool         a limited number of connections
failures     errors of connections
connector    makes connections for a URL
operations   the reads and writes that the rules of a transport yield
"""
