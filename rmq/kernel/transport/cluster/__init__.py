"""The transports to a Redis Cluster.

transports       blocking and asyncio
routed_calls     calls of scripts, each on the node of its slot
tasks            calls on their way to nodes
joined_replies   the replies of several nodes as one
node_pools       connections to the nodes
"""
