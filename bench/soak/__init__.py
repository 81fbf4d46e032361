"""Soak tests: RMQ under faults for minutes or hours, and the check of the recorded history.

`python -m bench.soak run --minutes 5` runs one, `python -m bench.soak check FILE` checks what was
recorded; docs/faults.md has the faults, the controls and the form of the file.

command     the command line; `check` prints what was found
history     one event of a history, the recorder and the reader of its file
checker     what must hold in a history, and the verdict
deliveries  the checks of messages that were delivered more than once, and of their order
per_id      linearizability of the operations of each message
figures     what each fault cost: the time without an answer, acked messages per second
plot        a chart of a history
faults      the faults, the plan of a run from its seed, and how each is made
proxy       a TCP proxy that does what networks do; the fault tests use it, too
server      the embedded Redis of a soak, behind the proxy
child       a producer or a consumer, as a process
run         a soak from its start to its drain
controls    broken variants that the checker has to catch
"""
