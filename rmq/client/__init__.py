"""Clients, topics, consumers and administration; sync and asyncio side by side."""
