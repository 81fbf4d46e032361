"""The outbox; `rmq.outbox` has the public names.

outbox     write messages in the caller's transaction; the policy of resends
tables     rmq_stub, rmq_log; ids of stubs and messages
relay      send committed stubs; relay_queries: its SQL; dispatch: send stubs to Redis; stub: a row
resend     send lost stubs again; lost: decide which are lost; resend_queries: SQL of both
notify     report exhausted stubs to a hook
confirm    for consumers: note receipts and confirm stubs; confirm_queries: its SQL
repair     by hand: resend, void, withdraw, purge; inspect: list stubs
"""
