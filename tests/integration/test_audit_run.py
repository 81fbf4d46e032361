"""A run with everything in it: merges, retries, dead letters, cancels, purges, expiry, overflow,
retention, and producers and consumers that are killed. Nothing is lost, and nothing is reported.
"""

from __future__ import annotations

import itertools
import threading
import time

import pytest

import rmq
from tests.integration.audit_child import start
from tests.integration.auditing import lose, lost, producer
from tests.patience import PATIENCE_S, wait_for

ROUNDS = 5


def _quiet(client: rmq.Client, names: list[str]) -> None:
    """Until nothing is in flight any more."""

    def over() -> bool:
        for name in names:
            client.admin.rollback(name)
        return not any(client.admin.stats(name)["in_flight"] for name in names)

    wait_for(over, within=PATIENCE_S)


def _all_of_it(client: rmq.Client, name: str, also: str) -> bool:
    """Whether everything has happened in a topic: of each child, and of each kind."""
    found, counts = client.admin.audit(name, older_than=0), client.admin.stats(name)
    kinds = (
        "merged",
        "cancelled",
        "purged",
        "rolled_back",
        "dead_lettered",
        "redriven",
        *also.split(),
    )
    return (
        found.producers == 2 + ROUNDS
        and min(found.seen, found.accounted) > 500
        and all(counts[kind] for kind in kinds)
    )


@pytest.mark.slow
def test_nothing_is_reported_in_a_run_with_everything_in_it(server, client, name):
    kept, full = f"{name}-kept", f"{name}-full"
    client.topic(kept, slots=3, max_retries=2, retry="immediate", dead_retention=1.0).open()
    client.topic(
        full, slots=2, max_retries=1, retry="immediate", max_length=400, overflow="drop_lowest",
        on_expire="drop",
    ).open()  # fmt: skip
    names = [kept, full]
    audits, stop = [], threading.Event()

    def look() -> None:
        with rmq.Client(server.url) as other:
            while not stop.wait(0.02):
                audits.extend(other.admin.audit(one, older_than=0) for one in names)

    watcher = threading.Thread(target=look)
    watcher.start()
    producers = [start("produce", server.url, n, *names) for n in range(2)]
    consumers = [start("consume", server.url, n, *names) for n in range(2)]
    try:
        for turn in range(ROUNDS):
            time.sleep(0.8)
            sent = sum(client.admin.stats(one)["accepted"] for one in names)
            wait_for(
                lambda than=sent: sum(client.admin.stats(n)["accepted"] for n in names) > than + 50,
                within=PATIENCE_S,
            )
            for children, what in ((producers, "produce"), (consumers, "consume")):
                child = children.pop(0)
                child.kill()
                child.wait()
                children.append(start(what, server.url, 10 + turn, *names))
            for one in names:
                client.admin.redrive(one, reason="rejected" if turn % 2 else None)
                if turn % 3:
                    client.admin.purge(one, "store" if turn % 3 == 1 else "dead", keep=0)
        wait_for(lambda: _all_of_it(client, kept, "dead_dropped"), within=PATIENCE_S)
        wait_for(lambda: _all_of_it(client, full, "dropped expired"), within=PATIENCE_S)
    finally:
        for child in producers + consumers:
            child.kill()
            child.wait()
        stop.set()
        watcher.join()
    _quiet(client, names)

    assert len(audits) > 10
    assert [one for one in audits if one.missing] == []
    for one in names:
        counts = client.admin.stats(one)  # drops dead letters past their retention
        found = client.admin.audit(one, older_than=0)
        assert found.missing == 0, found.lost
        assert found.waiting + found.in_flight + found.dead == counts["records"]


def test_what_is_lost_in_such_a_run_is_reported_and_nothing_else(server, client, name):
    client.topic(name, slots=3, max_retries=5, retry="immediate").open()
    raw, expected = server.raw(), set()
    children = [start(what, server.url, 5, name) for what in ("produce", "consume")]
    with producer("sync", server) as ours:
        topic = ours.topic(name)
        for n in range(12):
            id = topic.send(n, delay=60).id
            time.sleep(0.05)
            if n % 3 == 0:
                expected.add(lose(raw, name, id))
                found = client.admin.audit(name, older_than=0)
                assert lost(found) <= expected
        for child in children:
            child.kill()
            child.wait()
    raw.close()

    found = client.admin.audit(name, older_than=0)
    assert lost(found) == expected
    assert len(expected) == 4


def test_at_most_once_consumers_that_live_leave_nothing_missing(server, client, name):
    client.topic(name, slots=2).open()
    making, taking = (start(what, server.url, 3, name) for what in ("produce", "pop"))
    found = None
    ends = time.monotonic() + PATIENCE_S
    for turn in itertools.count():
        time.sleep(0.1)
        assert time.monotonic() < ends, found
        found = client.admin.audit(name, older_than=0)
        assert found.missing == 0
        if turn >= 5 and found.seen > 100:
            break
    for child in (making, taking):
        child.kill()
        child.wait()

    _quiet(client, [name])  # what was leased and not acked when the kill came is taken back
    found = client.admin.audit(name, older_than=0)
    assert found.missing == 0
    assert not found.in_flight
