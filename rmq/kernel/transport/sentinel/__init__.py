"""Connect to the master that Redis Sentinel names.

master_finder   queries the sentinels for the master
master_pool     connections to the master, and pools of these connections
"""
