"""A process that resizes a topic: `python -m tests.faults.resizer <url> <topic> <slots>`."""

from __future__ import annotations

import rmq


def main(url: str, name: str, slots: str) -> None:
    with rmq.Client(url) as client:
        client.admin.topic_resize(name, int(slots))
