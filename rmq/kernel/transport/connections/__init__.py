"""Connections to servers, and pools of connections.

pool         a limited number of connections
failures     errors of connections
connector    makes connections for a URL
operations   reads and writes on connections, which the rules of a transport yield
"""
