"""Workers: processes that run a handler for every message of its topic.

worker           the class that a program uses: start, stop, run until a signal
running_worker   the parts of a worker from its start to its stop
recycling        limits after which a new process replaces this process
engine           composes the four stages below, for all handlers
receiving/       receives for all topics in one thread
holding/         keeps deliveries in one queue per handler
running/         calls handlers in threads and tasks, and decides how to settle
settling/        settles many deliveries in one call
handled_topic    data of one topic that the stages share
process_scope    opens lifespans and dependencies of the process
watchdog         checks the engine, the heartbeat and Redis
heartbeat/       renews leases in another process
scheduler        sends the messages of schedules; also without a worker
supervisor/      runs several worker processes, and restarts them (`rmq worker`)

A message passes the four stages in this order. The fetcher calls the feed of a topic, which
receives the message under a lease. The queue of the handler keeps the message until a thread or
task of an executor is free. An invoker calls the handler, and decides how to settle the delivery. A
settler settles the delivery in Redis. Each stage imports only from the stages after it.
"""

from rmq.worker.scheduler import Scheduler
from rmq.worker.watchdog import Health
from rmq.worker.worker import Worker

__all__ = ["Health", "Scheduler", "Worker"]
