"""`/api/v1`: the audit trail, audits of losses, and the doctor."""

from __future__ import annotations

import pytest

import rmq
from rmq.features.doctor.flows import NAMES
from rmq.kernel.core.keys import audit_trail_key
from rmq.kernel.topic.audit_trail import AuditLine
from tests.server.conftest import Ask
from tests.server.running import walked
from tests.servers import Server as Redis

AT_MS = 1_790_000_000_000


def note(server: Redis, prefix: str, times: list[int]) -> None:
    """Put lines of these times into the audit trail."""
    for number, at_ms in enumerate(times):
        line = AuditLine(at_ms, "me", "job start", f"orders.{number:08}", "all")
        server.raw().zadd(audit_trail_key(prefix), {line.pack(): at_ms})


@pytest.mark.parametrize("limit", [1, 2, 3, 500])
def test_every_line_of_the_audit_trail_is_on_one_page(
    api: Ask, server: Redis, prefix: str, limit: int
) -> None:
    note(server, prefix, [AT_MS + n // 4 for n in range(10)])  # several of one millisecond

    found = walked(api, f"/audit-trail?limit={limit}", "lines")

    assert [line["subject"] for line in found] == [f"orders.{n:08}" for n in reversed(range(10))]


def test_new_lines_do_not_move_the_pages_of_a_list(api: Ask, server: Redis, prefix: str) -> None:
    note(server, prefix, [AT_MS] * 3)
    first = api("/audit-trail?limit=2").body

    note(server, prefix, [AT_MS + 1] * 5)

    rest = api(f"/audit-trail?limit=2&cursor={first['cursor']}").body
    assert (len(first["lines"]), len(rest["lines"]), rest["cursor"]) == (2, 1, None)


def test_the_audit_trail_says_who_started_a_job(api: Ask, client: rmq.Client) -> None:
    client.topic("orders").open()
    job = api("/topics/orders/jobs", "POST", {"by": "ann", "filter": "age>1h"}).body["id"]

    lines = walked(api, "/audit-trail", "lines")

    (line,) = (line for line in lines if line["what"] == "job start")
    assert (line["by"], line["subject"], line["text"]) == ("ann", job, "redrive filter=age>1h")
    for wrong in ("?limit=0", "?limit=501", "?cursor=x", "?cursor=WzEsMV0"):
        assert api("/audit-trail" + wrong).status == 400


def test_lost_messages_are_reported_and_forgotten(api: Ask, server: Redis, prefix: str) -> None:
    with rmq.Client(server.url, prefix=prefix, interceptors=[rmq.Audit()]) as producer:
        topic = producer.topic("orders")
        topic.send_many([rmq.Outgoing(n) for n in range(5)])
    server.raw().delete(*(f"{prefix}:{{orders_0}}:{key}" for key in ("store", "records")))

    found = api("/topics/orders/audit?older_than=0").body
    assert (found["numbered"], found["missing"], found["waiting"]) == (5, 5, 0)
    (lost,) = found["lost"]
    assert (lost["slot"], lost["last"] - lost["first"]) == (0, 4)
    assert api("/topics/orders/audit").body["missing"] == 0, "accepted less than a minute ago"

    assert api("/topics/orders/audit/forget", "POST", {"older_than": 0}).body["missing"] == 5
    assert api("/topics/orders/audit?older_than=0").body["missing"] == 0
    assert api("/topics/orders/audit?older_than=-1").body["field"] == "older_than"
    assert api("/topics/none/audit").status == 404


def test_the_doctor_makes_all_checks_or_those_that_are_named(api: Ask, client: rmq.Client) -> None:
    client.topic("orders").send(1)

    found = api("/doctor").body
    assert {each["check"] for each in found["findings"]} == set(NAMES)
    assert found["worst"] in {each["severity"] for each in found["findings"]}
    few = api("/doctor?only=no-consumer,paused").body
    (alone, paused) = few["findings"]
    assert (alone["check"], alone["severity"], few["worst"]) == (
        "no-consumer",
        "warning",
        "warning",
    )
    assert (alone["evidence"][:7], alone["fix"][:10]) == ("orders:", "rmq worker")
    assert (paused["severity"], paused["fix"]) == ("ok", "")
    refused = api("/doctor?only=fever")
    assert (refused.status, refused.body["field"]) == (400, "only")
    assert api("/doctor?only=Fever!").body["field"] == "only"
