"""Workers: handlers run for every message of their topics.

worker    start, stop, signals, health: what a program sees
crew      everything that serves one handler: fetch, run, settle
desk      a consumer whose leases stand on the board
board     what is in hand, in memory shared with the keeper
keeper    renews leases, in a process that handlers cannot starve
hands     threads and tasks in which handlers run
runner    one run of a handler, and what becomes of its message
"""

from rmq.worker.worker import Health, Worker

__all__ = ["Health", "Worker"]
