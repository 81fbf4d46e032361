"""Connections to servers, and pools of connections.

pool         a limited number of connections
failures     errors of connections
connector    makes connections for a URL
operations   what the rules of a transport yield: reads and writes on connections
"""
