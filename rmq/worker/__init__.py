"""Workers: processes that run a handler for every message of its topic.

worker         the class that a program uses: start, stop, run until a signal
running        the parts of a worker from its start to its stop; limits after which it is replaced
engine         what receives, runs and settles the messages of all handlers
fetcher        a thread that receives for all topics, and the order of topics
feed           one topic: its deliveries on their way to handlers
queue          one handler: how many deliveries it holds, what waits
executors      threads and tasks in which handlers run
runs           one handler: begin and end runs; their limits, and how many deliveries to hold
runner         calls a handler for a delivery or a batch, and decides how it is settled
disposition    how a delivery is settled after its run; claims that outlive it
poison         messages that kill their process, kept apart from harmless ones
settler        threads that settle deliveries, many in one call
watchdog       a thread that checks the engine, the heartbeat and Redis
process_scope  opens lifespans and dependencies around all runs
scheduler      sends the messages of schedules; also by itself
heartbeat/     renews leases, in a process that handlers cannot starve
supervisor/    runs several worker processes, and restarts them (`rmq worker`)

A message goes from the fetcher to the feed of its topic, which receives it under a lease; to the
queue of its handler; to a thread or task of an executor; to the runs, which have the runner call
the handler and report what follows; to a settler, which settles it in Redis.
"""

from rmq.worker.scheduler import Scheduler
from rmq.worker.watchdog import Health
from rmq.worker.worker import Worker

__all__ = ["Health", "Scheduler", "Worker"]
