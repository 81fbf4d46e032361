"""Batches over HTTP, in the console, and in the services of a server."""

from __future__ import annotations

import rmq
from tests.server.conftest import Ask
from tests.server.running import ask, serving, until
from tests.servers import Server as Redis


def fill(client: rmq.Client, name: str, count: int) -> rmq.Batch:
    """Open a batch with waiting members."""
    topic = client.topic("orders")
    batch = client.batch(name, then=(topic, rmq.Outgoing("report")))
    batch.open()
    batch.send_many(topic, [rmq.Outgoing(n) for n in range(count)])
    return batch


def test_batches_are_listed_in_pages_closed_and_cancelled(api: Ask, client: rmq.Client) -> None:
    for name in ("first", "second", "third"):
        fill(client, name, 2)

    page = api("/batches?limit=2").body
    rest = api(f"/batches?limit=2&cursor={page['cursor']}").body
    names = [each["name"] for each in page["batches"] + rest["batches"]]
    assert (sorted(names), len(page["batches"])) == (["first", "second", "third"], 2)
    assert rest["cursor"] is None
    one = api("/batches/first").body
    assert (one["state"], one["members"], one["open"], one["topics"]) == ("open", 2, 2, ["orders"])

    assert api("/batches/first/close", "POST", {}).body == {"state": "closed"}
    assert api("/batches/first/cancel", "POST", {"confirm": "orders"}).body["field"] == "confirm"
    assert api("/batches/first/cancel", "POST", {"confirm": "first"}).body == {"count": 2}
    ended = api("/batches/first").body
    assert (ended["state"], ended["cancelled"], ended["is_cancelled"]) == ("done", 2, True)

    acts = [(line.what, line.text) for line in client.admin.audit_trail()]
    assert acts[0] == ("cancel_batch", "name=first: done")
    assert [what for what, _ in acts] == ["cancel_batch", "cancel_batch", "close_batch"]


def test_an_unknown_batch_is_not_found(api: Ask) -> None:
    for path, method, body in (
        ("/batches/none", "GET", None), ("/batches/none/close", "POST", {}),
        ("/batches/none/cancel", "POST", {"confirm": "none"}),
    ):  # fmt: skip
        answer = api(path, method, body)
        assert (answer.status, answer.body["type"]) == (404, "urn:rmq:error:not-found")


def test_a_topic_with_a_batch_is_kept_unless_forced(api: Ask, client: rmq.Client) -> None:
    fill(client, "first", 0)

    assert api("/topics/orders?confirm=orders&dry_run=true", "DELETE").body["batches"] == 1
    assert api("/topics/orders?confirm=orders", "DELETE").status == 409
    assert api("/topics/orders?confirm=orders&force=true", "DELETE").body["batches"] == 1


def test_the_doctor_names_batches_that_have_not_changed_for_an_hour(
    server: Redis, client: rmq.Client
) -> None:
    client.topic("orders").open()
    fill(client, "fresh", 1)
    assert [each.severity for each in client.admin.doctor(["batches"])] == ["ok"]

    for name, touched in (("left", 1), ("waits", 2)):
        batch = fill(client, name, 1)
        if name == "waits":
            batch.close()
        server.raw().hset(batch._definition.keys().batch(name), "#touched", touched)
    (both,) = client.admin.doctor(["batches"])
    assert (both.severity, both.fix) == ("warning", "rmq batch close left")
    assert "is open with 1 open member" in both.evidence
    assert "and 1 more like it" in both.evidence

    client.admin.batch_cancel("left")
    (one,) = client.admin.doctor(["batches"])
    assert one.fix == "rmq batch cancel waits"


def test_a_server_closes_a_batch_after_its_timeout_and_counts_open_batches(
    server: Redis, client: rmq.Client, prefix: str
) -> None:
    topic = client.topic("orders")
    batch = client.batch("first", then=(topic, rmq.Outgoing("report")), timeout=0.001)
    batch.open()
    fill(client, "second", 1)

    with serving(server.url, prefix) as running:
        until(lambda: client.admin.batch("first").state == "done", "it was not closed")
        until(lambda: running.batches.open == 1, "it was not counted")
        assert "rmq_batches_open 1.0" in str(ask(running.url + "/metrics").body)
