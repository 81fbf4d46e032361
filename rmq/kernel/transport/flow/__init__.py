"""Flows: generators that the blocking and the asyncio transport run in the same way.

steps        the steps that a flow yields: commands, pipelines, pauses, signals
coalescing   waits for a call that simultaneous callers share
"""
