"""Communicate with Redis. All code that does so is in this package.

open           chooses the transport of an address
cluster/       transports to a Redis Cluster
single/        transports to one server: they run flows, and execute commands
sentinel/      finds the master that the sentinels name
connections/   makes connections, and pools them
embedded/      starts a private server
flow/          the steps that flows yield, and calls that simultaneous callers share
lua/           composes the scripts
errors         translates the errors of Redis
url            reads addresses
acl            rules for the roles of RMQ
hash_slots     which node of a cluster serves a key
leader         commands that choose one leader among several `rmq server`
"""
