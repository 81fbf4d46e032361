"""Connections to servers, and pools of them.

pool        a bounded number of connections
connector   makes connections for a URL
"""
