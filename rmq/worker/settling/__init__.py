"""Settle deliveries after their runs.

disposition       how a delivery is settled after its run, and how that is decided
unhandled         the same for messages whose type no handler of this worker has
detached_claims   claims of runs that go on without their deliveries
settler           settles the deliveries of one handler
settle_call       deliveries that are settled by one verb, over as many tries as Redis needs
report_batch      the reports that a settler carries out together
thread            the threads in which settlers work
"""
