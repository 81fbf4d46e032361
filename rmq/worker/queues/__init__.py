"""Keep received deliveries until a thread or a task is free.

queue           keeps the deliveries of one handler, and limits how many there are
prefetch        decides how many deliveries a handler may have
partial_batch   collects deliveries until a batch is full
suspects        starts messages that may have killed their process before
"""
