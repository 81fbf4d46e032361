"""The outbox. `rmq.outbox` has the public names.

outbox           writes messages in the caller's transaction, and has the policy of resends
tables           the tables rmq_stub and rmq_log, and the ids of stubs and messages
relay            sends committed stubs
relay_queries    SQL of the relay
dispatch         sends stubs to Redis
resend           sends lost stubs again
lost             decides which stubs are lost
resend_queries   SQL of `resend` and `lost`
notify           reports exhausted stubs to a hook
confirm          for consumers: notes receipts and confirms stubs
confirm_queries  SQL of `confirm`
repair           changes stubs by hand: resend, void, withdraw, purge
inspect          lists stubs
"""
