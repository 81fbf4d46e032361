"""Run handlers in threads and tasks.

executors       threads and tasks in which the work of all handlers runs
event_loop      the event loop of async handlers
work            one handler: begin its work items, and report how they ended
invoker         calls the handler for a delivery or a batch, and decides how it is settled
handler_calls   the differences between calls of plain and of async handlers
max_runtime     runs that exceed their limit
run_times       how long runs take, and how many deliveries to hold by that
poison          messages that may kill their process, kept apart from harmless ones
"""
