"""Flows: generators that a blocking and an asyncio transport drive alike.

steps        the steps that a flow yields: commands, pipelines, pauses, signals
coalescing   calls of one kind that happen at once share a call
"""
