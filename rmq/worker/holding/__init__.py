"""Hold received deliveries until a thread or task is free.

queue           one handler: how many deliveries it holds, and what waits
prefetch        the most deliveries that a handler may hold
partial_batch   deliveries that wait until a batch is full
suspects        messages that may kill their process: the others make room for them
"""
