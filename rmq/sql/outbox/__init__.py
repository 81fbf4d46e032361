"""The outbox: you write messages in a database transaction, and RMQ sends them after the commit.

`rmq.outbox` has the public names. A stub is the row of a message in the outbox table.

outbox           writes messages in the caller's transaction, and decides when to resend them
tables           the tables rmq_stub and rmq_log, and the ids of stubs and messages
relay            sends committed stubs
relay_queries    SQL of the relay
dispatch         sends stubs to Redis
resend           sends lost stubs again
lost             decides which stubs are lost
resend_queries   SQL of `resend` and `lost`
notify           reports exhausted stubs to a function of the program
confirm          for consumers: records receipts and confirms stubs
confirm_queries  SQL of `confirm`
repair           changes stubs by hand: resend, void, withdraw, purge
inspect          lists stubs
"""
