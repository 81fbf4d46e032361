"""Send commands to a Redis Cluster.

transports        blocking and asyncio
cluster_commands  the rules: which node gets a command, and which commands are repeated
node_call         the state of one call to a node
joined_replies    joins the replies of several nodes
node_pools        connections to the nodes
"""
