"""Workers audit their topics together, and say what is missing."""

from __future__ import annotations

import logging
import time

import pytest

import rmq
from rmq.features.audit import auditor
from tests.integration.auditing import lose, lost, producer
from tests.integration.driven import both_clients, connect
from tests.patience import wait_for


@both_clients
def test_worker_reports_what_is_missing(kind, server, raw, client, name, caplog):
    with producer(kind, server) as theirs:
        topic = theirs.topic(name)
        ids = [topic.send(n, delay=60).id for n in range(5)]
        topic.send("work")
    expected = {lose(raw, name, id) for id in ids[1:3]}
    told, seen = [], []
    audit = rmq.Audit(every=1.0, older_than=0, on_missing=told.append)
    with connect(kind, server.url, interceptors=[audit]) as mine:
        topic = mine.topic(name)

        @topic.handler()
        def handle(body: object) -> None:
            seen.append(body)

        with (
            caplog.at_level(logging.ERROR, "rmq"),
            rmq.Worker(getattr(mine, "target", mine), heartbeat="thread"),
        ):
            wait_for(lambda: audit.missing and seen)

    assert audit.missing == {name: 2}
    assert lost(told[0]) == expected
    assert seen == ["work"]
    first = told[0].lost[0]
    assert f"topic {name!r}: 2 of 6 numbered messages are missing: {first.producer}.2-3" in (
        caplog.text
    )


def test_callback_that_raises_is_reported_and_the_audit_goes_on(server, raw, client, name, caplog):
    with producer("sync", server) as theirs:
        lose(raw, name, theirs.topic(name).send("a").id)

    def broken(found: rmq.AuditResult) -> None:
        raise ValueError(found.topic)

    audit = rmq.Audit(every=1.0, older_than=0, on_missing=broken)
    audit.report(name, client.admin.audit(name, older_than=0))

    assert audit.missing == {name: 1}
    assert "raised" in caplog.text


def test_workers_take_turns(server, raw, client, name):
    with producer("sync", server) as theirs:
        topic = theirs.topic(name)
        lose(raw, name, topic.send("a", delay=60).id)
    reports: list[tuple[int, float]] = []

    def told(number: int) -> object:
        return lambda found: reports.append((number, time.monotonic()))

    workers, clients, audits = [], [], []
    for number in range(3):
        audit = rmq.Audit(every=1.0, older_than=0, on_missing=told(number))
        mine = rmq.Client(server.url, interceptors=[audit])
        mine.topic(name).handler()(lambda body: None)
        audits.append(audit)
        clients.append(mine)
        workers.append(rmq.Worker(mine, heartbeat="thread"))
    for one in workers:
        one.start()
    wait_for(lambda: len(reports) >= 5)
    # Who had the turn before learns only at its next look that another one tells of it now.
    wait_for(lambda: sum(bool(one.missing) for one in audits) == 1)
    for worker, mine in zip(workers, clients, strict=True):
        worker.stop()
        mine.close()

    moments = sorted(moment for _, moment in reports)
    assert moments[4] - moments[0] > 2.5, "one a second, of all three together"


def test_worker_without_an_interval_does_not_audit(server, client, name):
    with rmq.Client(server.url, interceptors=[rmq.Audit()]) as mine:
        mine.topic(name).handler()(lambda body: None)
        worker = rmq.Worker(mine, heartbeat="thread")

        assert auditor.start(worker._hooks.chain, mine._transport, []) is None


def test_worker_whose_redis_is_away_goes_on_auditing(own_server, name, caplog):
    audit = rmq.Audit(every=1.0, older_than=0)
    with rmq.Client(own_server.url, retry_for=0.1, interceptors=[audit]) as mine:
        topic = mine.topic(name)
        topic.send("a")
        topic.handler()(lambda body: None)
        with rmq.Worker(mine, heartbeat="thread"):
            own_server.kill()
            wait_for(lambda: "cannot be audited just now" in caplog.text)
            own_server.start()
            wait_for(lambda: audit.missing == {name: 0})


def test_interval_and_threshold_are_checked():
    for bad in (0, 0.5, -1, "1s", float("nan")):
        with pytest.raises((rmq.InvalidValue, rmq.InvalidType)):
            rmq.Audit(every=bad)  # type: ignore[arg-type]
    with pytest.raises(rmq.InvalidValue):
        rmq.Audit(older_than=-1)
