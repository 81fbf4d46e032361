"""The transports to one server, and what they share.

blocking, asyncio   the transports
driver              what both have in common, written once
script_calls        calls of scripts: load, repeat, explain errors
subscription        waits for signals
"""
