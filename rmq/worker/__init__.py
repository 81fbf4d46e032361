"""Workers: handlers run for every message of their topics.

worker    start, stop, signals, health: what a program sees
crew      everything that serves one handler: fetch, run
settler   carries out what the runs came to
desk      a consumer whose leases stand on the board
pace      how long handlers take, and so how much to hold
suspects  which messages that may kill a process run beside each other
board     what is in hand, in memory shared with the keeper
keeper    renews leases, in a process that handlers cannot starve
hands     threads and tasks in which handlers run
runner    one run of a handler, and what becomes of its message
watch     looks after the crews of a worker: limits, keeper, health, watchdog
loop      an event loop in a thread, and the beat of any loop
away      what is said and done while Redis is away

Of the command `rmq worker`:

supervisor  several worker processes, started again when they die
line        what these processes and their supervisor tell each other
probes      an HTTP endpoint for those who watch
"""

from rmq.worker.watchdog import Health
from rmq.worker.worker import Worker

__all__ = ["Health", "Worker"]
