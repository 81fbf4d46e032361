"""Workers: processes that run a handler for every message of its topic.

worker            the class that a program uses: start, stop, run until a signal
running_worker    the parts of a worker, from its start to its stop
stop_signals      SIGTERM and SIGINT: stop, and stop at once
chosen_topics     the topics whose handlers it runs, of those of its client
engine            what receives, runs and settles the messages of all handlers
fetcher           receives for all topics, in one thread
due_feeds         whose turn it is: the topic that is due for longest
topic_feed        the deliveries of one topic, on their way to its handlers
handler_queue     the deliveries of one handler: how many it holds, what waits
handler_runs      the runs of one handler: begin, run, end
lane              the work of one handler that waits for an executor
executors         threads and tasks in which handlers run
runner            one run of a handler, plain or async
handler_runner    what the next two have in common
plain_runner      runs a plain handler, in a thread
async_runner      runs an async handler, in an event loop
wrapped_call      calls a handler inside hooks, middleware and dependencies
run_scope         opens dependencies around a run, and closes them
process_scope     opens lifespans and dependencies around all runs
unhandled         messages whose type no handler has
disposition       how a delivery is settled after its run, and how that is decided
reports           collects the ends of runs for the settlers
settler           settles deliveries, many in one call
settler_thread    a thread that does the work of several settlers
handler_consumer  the consumer of a topic: it receives, claims and settles
prefetch          how many deliveries to hold, by the run times of a handler
poison_messages   keeps messages apart that may kill their process
runtime_limits    finds runs that exceeded their max_runtime
detached_claims   renews the claims of runs that outlive their deliveries
lease_tracker     the shared leases of a worker, and which deliveries have begun
shared_memory     what the worker and its heartbeat know of each other
heartbeat         renews leases, in a process that handlers cannot starve
heartbeat_process starts the heartbeat, and another when it dies
script_connection the heartbeat's connection to Redis
cluster_connection the same to the nodes of a Redis Cluster
watchdog          checks the engine: limits, health, a stuck worker
event_loop        an event loop in a thread, and a heartbeat for any loop
redis_outage      opens topics, and logs, while Redis cannot be reached
auditor           looks for lost messages
scheduler         sends the messages of schedules; also by itself
dispatch          what a scheduler does: declare schedules, send what is due
status_reporter   reports the running handlers of this process to Redis
recycling         limits after which a process ends, so that another replaces it
process_exit      exit codes, and the end of a process whose threads still run

Of the command `rmq worker`:

supervisor        runs several worker processes, and restarts them
worker_process    one of them: its start, its messages, its health
control_channel   carries messages between a supervisor and a worker process
probes            an HTTP endpoint for liveness, readiness and metrics
"""

from rmq.worker.scheduler import Scheduler
from rmq.worker.watchdog import Health
from rmq.worker.worker import Worker

__all__ = ["Health", "Scheduler", "Worker"]
