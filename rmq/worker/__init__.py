"""Workers: handlers run for every message of their topics.

worker    start, stop, signals, health: what a program sees
crew      everything that serves one handler: fetch, run, settle
desk      a consumer whose leases stand on the board
board     what is in hand, in memory shared with the keeper
keeper    renews leases, in a process that handlers cannot starve
hands     threads and tasks in which handlers run
runner    one run of a handler, and what becomes of its message
reports   what hands report, by kind

Of the command `rmq worker`:

supervisor  several worker processes, started again when they die
line        what these processes and their supervisor tell each other
probes      an HTTP endpoint for those who watch
"""

from rmq.worker.worker import Health, Worker

__all__ = ["Health", "Worker"]
