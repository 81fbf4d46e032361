"""Settle deliveries after their handler has run.

disposition       decides how a delivery is settled
unhandled         decides how to settle messages whose type has no handler in this worker
detached_claims   keeps claims while a handler runs longer than its delivery lasts
settler           settles the deliveries of one handler in its own threads
"""
