"""The outbox; `rmq.outbox` has the public names.

outbox     write messages in the caller's transaction; the policy of resends
relay      send what was committed; relay_queries: its SQL; dispatch: from stubs to Redis
resend     send again what was lost; resend_queries: its SQL; notify: report what is given up
confirm    the consumer's half: a log row on receipt, the confirmation on success
repair     by hand: resend, void, purge; transaction: the caller's transaction
stub       a row, and the message that it becomes; ids: their ids
tables     rmq_stub and rmq_log, for migrations
"""
