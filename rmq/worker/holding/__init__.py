"""Keep received deliveries until a thread or task is free.

queue           keeps the deliveries of one handler, and limits their number
prefetch        decides how many deliveries a handler may have
partial_batch   collects deliveries until a batch is full
suspects        starts suspects, which are messages that may have killed their process before
"""
