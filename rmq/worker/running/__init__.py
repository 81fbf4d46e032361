"""Run handlers in threads and tasks.

executors       run the work of all handlers in threads or tasks
event_loop      runs async handlers
work            begins the runs of one handler, and reports each result to the settler
invoker         calls a handler for a delivery or a batch
invoker_base    base class: keeps claims, and ends processes that a handler forked
max_runtime     finds handlers that run too long
poison          isolates messages that may kill their process
"""
