"""Tell a batch how its members have ended. A member is a message of the batch.

When a member ends, Redis records this in the slot of the member. Redis cannot change the batch in
the same step, because the batch may be in another slot or on another server.

A process that settles members then reports these records to the batch. Consumers of the topic and
`rmq server` report all other records, for example of purged members.
"""

from __future__ import annotations

from contextlib import suppress

from rmq.errors import TopicVanished
from rmq.kernel.batches import scripts
from rmq.kernel.batches.ref import parse_ref
from rmq.kernel.batches.scripts import END_MAX
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import Flow


def report(context: TopicContext, keys: SlotKeys) -> Flow[set[tuple[str, int]]]:
    """Tell batches how their members in a slot have ended.

    Returns:
        Slots (topic and index) that may now have a callback to send.
    """
    called: set[tuple[str, int]] = set()
    reported: list[tuple[bytes, bytes]] = []
    while True:
        ends = yield scripts.member_ends(keys, reported, END_MAX)
        if not ends:
            return called
        by_batch: dict[tuple[str, int, str], list[tuple[str, str]]] = {}
        for _, value in ends:
            ref = parse_ref(value[1:].decode("utf-8", "replace"))
            if ref is not None:
                letter = value[:1].decode("latin-1")
                by_batch.setdefault(ref[:3], []).append((ref.id, letter))
        for (topic, slot, name), members in by_batch.items():
            batch_keys = SlotKeys(context.prefix, topic, slot)
            with suppress(TopicVanished):  # no callback of a topic that was deleted
                reply = yield scripts.batch_end(batch_keys, name, members)
                if reply.state == "d":
                    called.add((topic, slot))
        reported = ends
