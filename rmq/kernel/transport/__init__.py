"""All code that communicates with Redis.

open           chooses the transport of an address
cluster/       the transports to a Redis Cluster
single/        the transports to one server: they drive flows, and execute commands
sentinel/      finds the master that the sentinels name
connections/   makes connections, and pools them
embedded/      starts a private server
flow/          the steps that flows yield, and calls for simultaneous callers
lua/           composes the scripts
errors         translates the errors of Redis
url            reads addresses
acl            rules for the roles of RMQ
hash_slots     the hash slots of a cluster
leader         builders for the leadership among servers
"""
