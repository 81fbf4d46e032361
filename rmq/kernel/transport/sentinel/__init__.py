"""Redis Sentinel.

master_finder   queries the sentinels for the master
master_pool     connections to the master, and pools of these connections
"""
