"""Flows: generators that a blocking and an asyncio transport drive alike.

steps        what a flow yields: commands, pipelines, pauses, signals
operations   what the rules of transports yield: reads and writes on connections
coalescing   makes one call for simultaneous callers
"""
