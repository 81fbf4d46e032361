"""Hold received deliveries until a thread or task is free.

queue      one handler: how many deliveries it holds, and what waits
prefetch   the most deliveries that a handler may hold
"""
