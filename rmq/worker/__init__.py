"""Workers: processes that run a handler for every message of its topic.

worker           the class that a program uses: start, stop, run until a signal
running_worker   the parts of a worker from its start to its stop
recycling        limits after which a new process replaces this process
engine           composes the four stages below, for all handlers
receiving/       a thread that receives for all topics, and the feed of each topic
holding/         one queue for each handler: how many deliveries it holds, what waits
running/         threads and tasks, and in them the work of one handler: call it, decide, report
settling/        dispositions, and the threads that settle deliveries, many in one call
handled_topic    what the stages share of one topic
process_scope    opens lifespans and dependencies around all runs
watchdog         a thread that checks the engine, the heartbeat and Redis
heartbeat/       renews leases, in a process that handlers cannot starve
scheduler        sends the messages of schedules; also by itself
supervisor/      runs several worker processes, and restarts them (`rmq worker`)

A message passes the four stages in this order. The fetcher asks the feed of its topic to receive
it under a lease. The queue of its handler holds it until a thread or task of an executor is free.
An invoker calls the handler, and decides how the delivery is settled. A settler settles it in
Redis. Each stage imports only from the stages after it.
"""

from rmq.worker.scheduler import Scheduler
from rmq.worker.watchdog import Health
from rmq.worker.worker import Worker

__all__ = ["Health", "Scheduler", "Worker"]
