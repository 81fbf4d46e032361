"""Flows: what one call says to Redis, as a generator of steps. No sockets.

A flow yields the steps of `rmq.protocol.steps` and is sent their values. A transport, sync or
async, drives it; so both clients do the same, and a test can run a flow without a server.
"""
