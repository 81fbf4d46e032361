"""Flows: generators that a blocking and an asyncio transport drive alike.

steps        what a flow yields: commands, pipelines, pauses, signals
coalescing   makes one call for simultaneous callers
"""
