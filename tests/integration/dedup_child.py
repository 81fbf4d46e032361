"""A process that sends six hundred messages with keys, and prints what became of each."""

from __future__ import annotations

import json

import rmq
from tests.integration.driven import connect


def main(kind: str, url: str, name: str) -> None:
    with connect(kind, url) as api:
        topic = api.topic(name, slots=4)
        topic.open()
        print("ready", flush=True)
        input()  # until the other one is ready, too
        found = [
            one.status
            for first in range(0, 600, 20)
            for one in topic.send_many(
                [rmq.Outgoing(n, dedup_key=f"k{n}") for n in range(first, first + 20)]
            )
        ]
    print(json.dumps(found))
