"""`/api/v1`: leases of messages in flight, consumers of a topic, whole bodies."""

from __future__ import annotations

import json
import os
import threading

import pytest

import rmq
from rmq.features.workers import reporter
from tests.server.conftest import Ask
from tests.server.running import dead, until, walked


def test_leases_are_listed_with_the_time_that_is_left(api: Ask, client: rmq.Client) -> None:
    topic = client.topic("orders", slots=2, lease=60)
    topic.send_many([rmq.Outgoing(n, type="t") for n in range(5)])
    with topic.consumer() as consumer:
        taken = {str(delivery.id) for _ in range(2) for delivery in consumer.receive(5)}

        found = walked(api, "/topics/orders/leases?limit=1", "leases")

        assert {lease["id"] for lease in found} == taken
        for lease in found:
            assert (lease["kind"], lease["number"], lease["holder"]) == ("own", None, None)
            assert (lease["type"], lease["deliveries"]) == ("t", 1)
            assert 0 < lease["left_s"] <= 61
            assert lease["deadline"]
        slots = [lease["slot"] for lease in found]
        of_one = walked(api, f"/topics/orders/leases?slot={slots[0]}", "leases")
        assert len(of_one) == slots.count(slots[0])
        assert api("/topics/orders/consumers").body["in_flight"] == len(taken)
    assert api("/topics/orders/leases?limit=501").body["field"] == "limit"
    assert api("/topics/orders/leases?slot=2").body["field"] == "slot"
    assert api("/topics/none/leases").status == 404


def test_queries_hold_leases_and_are_consumers(api: Ask, client: rmq.Client) -> None:
    topic = client.topic("orders", retry="immediate")
    topic.send(1)
    topic.query("a" * 32, "there").take({})

    (lease,) = api("/topics/orders/leases").body["leases"]
    consumers = api("/topics/orders/consumers").body

    assert (lease["kind"], lease["deadline"], lease["left_s"]) == ("query", None, None)
    assert [query["run"] for query in consumers["queries"]] == ["a" * 32]
    assert (consumers["topic"], consumers["workers"]) == ("orders", [])
    assert api("/topics/none/consumers").status == 404


def test_the_holder_of_a_lease_is_the_worker_that_runs_it(
    api: Ask, client: rmq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter, "HEARTBEAT_S", 0.1)
    go = threading.Event()
    topic = client.topic("orders")
    topic.handler(concurrency=1, prefetch=3)(lambda body: go.wait(60))
    topic.send_many([rmq.Outgoing(n) for n in range(3)])

    with rmq.Worker(client, heartbeat="thread"):
        held = until(
            lambda: [
                lease
                for lease in api("/topics/orders/leases").body["leases"]
                if lease["holder"] is not None
            ],
            "a holder",
        )
        (worker,) = api("/topics/orders/consumers").body["workers"]
        go.set()

    assert {lease["kind"] for lease in held} == {"shared"}
    (number,) = {lease["number"] for lease in held}
    assert number > 0
    assert {lease["holder"]["id"] for lease in held} == {worker["id"]}
    assert {lease["holder"]["pid"] for lease in held} == {os.getpid()}
    handlers = sorted(lease["holder"]["handler"] for lease in held)
    assert handlers[:-1] == [""] * (len(held) - 1), "those that wait for the one that runs"
    assert handlers[-1].endswith("<lambda>")


# --- whole messages ------------------------------------------------------------------------------


def test_a_message_is_shown_whole_where_that_is_asked_for(api: Ask, client: rmq.Client) -> None:
    id = client.topic("orders").send({"n": "x" * 100_000}).id
    path = f"/topics/orders/messages/{id}"

    cut, whole = api(path).body["body"], api(path + "?whole=true").body["body"]

    assert (cut["is_truncated"], len(cut["text"])) == (True, 64 * 1024)
    assert (whole["is_truncated"], whole["size"]) == (False, len(whole["text"]))
    assert cut["size"] == len('{"n":""}') + 100_000
    assert json.loads(whole["text"]) == {"n": "x" * 100_000}
    assert api(path + "?whole=maybe").body["field"] == "whole"


def test_lists_have_what_is_left_in_slots_of_before_a_resize(api: Ask, client: rmq.Client) -> None:
    ids = dead(client, 24, slots=4)
    client.admin.topic_resize("orders", 2, wait=False)

    listed = walked(api, "/topics/orders/dead-letters?limit=5")

    assert {each["id"] for each in listed} == set(ids)
    assert max(each["slot"] for each in listed) >= 2, "the control: a former slot has some"
