"""The transports to a Redis Cluster.

transports        blocking and asyncio
cluster_commands  the rules: which node gets a command, and which commands are repeated
routed_call       one call to a node, and its state
joined_replies    joins the replies of several nodes
node_pools        connections to the nodes
"""
