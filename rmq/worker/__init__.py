"""Workers: processes that run a handler for every message of a topic.

worker           the class that your program uses to start and stop a worker
running_worker   the parts of a worker that has started
recycling        limits after which a new process replaces this process
engine           combines the four stages below, for all handlers
receiving/       receives the messages of all topics in one thread
queues/          keeps deliveries in one queue for each handler
running/         calls handlers in threads and tasks, and decides how to settle
settling/        settles many deliveries in one call
handled_topic    data of one topic that the stages share
process_scope    opens lifespans and dependencies of the process
watchdog         checks the engine, the heartbeat and Redis
heartbeat/       renews leases in another process
scheduler        sends the messages of schedules; a scheduler needs no worker
supervisor/      runs several worker processes, and restarts them (`rmq worker`)

A message passes the four stages in this order. First, the fetcher asks the feed of a topic to
receive messages under a lease. The queue of the handler then keeps a message until an executor has
a free thread or task. In this thread or task, an invoker calls the handler and decides how to
settle the delivery. Last, a settler settles the delivery in Redis. Each stage imports only from the
stages after it.
"""

from rmq.worker.scheduler import Scheduler
from rmq.worker.watchdog import Health
from rmq.worker.worker import Worker

__all__ = ["Health", "Scheduler", "Worker"]
