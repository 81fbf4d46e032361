"""Soak tests: RMQ under faults for minutes or hours, and the check of the recorded history.

`python -m bench.soak run --minutes 5` runs a soak, and `python -m bench.soak check FILE` checks a
recorded history. docs/faults.md describes the faults, the controls and the format of the file.

command     the command line; `check` prints the findings
history     an event of a history, and the recorder and reader of its file
checker     the conditions that must hold in a history, and the verdict
deliveries  the checks of repeated deliveries and of their order
per_id      linearizability of the operations of each message
figures     the cost of each fault: the time without an answer, acked messages per second
plot        a chart of a history
faults      the faults, the plan of a run from its seed, and how each fault is made
proxy       a TCP proxy that imitates network faults; the fault tests use it as well
server      the embedded Redis of a soak, behind the proxy
child       a producer or a consumer, as a process
run         a soak from its start to its drain
controls    broken variants that the checker must catch
"""
