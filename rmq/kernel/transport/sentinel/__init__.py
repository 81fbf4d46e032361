"""Redis Sentinel.

master_finder   asks the sentinels which server is the master
master_pool     connections to that master, and pools of them
"""
