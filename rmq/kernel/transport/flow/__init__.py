"""Define flows, which are generators that a blocking or an asyncio transport runs.

steps        the steps that a flow yields: commands, pipelines, pauses, signals
coalescing   waits for a call that simultaneous callers share
"""
