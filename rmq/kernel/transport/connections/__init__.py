"""Make connections to servers, and keep them in pools.

pool         a limited number of connections
failures     errors of connections
connector    makes connections for a URL
operations   the reads and writes that the rules of a transport yield
"""
