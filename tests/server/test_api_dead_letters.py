"""`/api/v1`: filters of dead letters, and what a dry run shows."""

from __future__ import annotations

from typing import Any

import pytest

import rmq
from tests.server.conftest import Ask
from tests.server.running import dead, until, walked

REDRIVE, PURGE = "/topics/orders/dead-letters/redrive", "/topics/orders/purge"
OF_PURGE = {"queue": "dead", "confirm": "orders"}


@pytest.mark.parametrize(
    ("given", "numbers"),
    [
        ({}, range(6)),
        ({"filter": "body.n>=2 and not type=t1"}, [2, 4]),
        ({"filter": "type=t0 or body.n=1", "type": "t1"}, [1]),
        ({"filter": "age>1h"}, []),
        ({"older_than": 0.0, "reason": "rejected", "type": "t0"}, [0, 2, 4]),
        ({"older_than": 3600}, []),
    ],
)
def test_a_dry_run_counts_and_shows_what_fits(
    api: Ask, client: rmq.Client, given: dict[str, Any], numbers: Any
) -> None:
    dead(client, 6, slots=2)

    redriven = api(REDRIVE, "POST", given | {"dry_run": True}).body
    purged = api(PURGE, "POST", given | OF_PURGE | {"dry_run": True}).body

    bodies = sorted(f'{{"n": {n}}}' for n in numbers)
    assert (redriven["matched"], redriven["sent"], purged["count"]) == (len(bodies), 0, len(bodies))
    for answer in (redriven, purged):
        assert sorted(each["body"]["text"] for each in answer["sample"]) == bodies
    assert client.admin.stats("orders")["dead"] == 6


def test_a_dry_run_with_ids_shows_those_that_fit(api: Ask, client: rmq.Client) -> None:
    ids = dead(client, 4)
    client.admin.redrive("orders", ids=[ids[0]])

    given = {"ids": ids[:3], "filter": "type=t1", "dry_run": True}

    shown = api(REDRIVE, "POST", given).body
    assert (shown["matched"], [each["id"] for each in shown["sample"]]) == (1, [ids[1]])
    shown = api(PURGE, "POST", {**OF_PURGE, "ids": ids[:3], "dry_run": True}).body
    assert {each["id"] for each in shown["sample"]} == {ids[1], ids[2]}


def test_a_dry_run_shows_ten_at_most(api: Ask, client: rmq.Client) -> None:
    dead(client, 12)

    shown = api(REDRIVE, "POST", {"filter": "reason=rejected", "dry_run": True}).body

    assert (shown["matched"], len(shown["sample"])) == (12, 10)


def test_only_what_fits_the_filter_is_redriven_and_purged(api: Ask, client: rmq.Client) -> None:
    dead(client, 6)

    assert api(REDRIVE, "POST", {"filter": "body.n<2"}).body["sent"] == 2
    kept = api(PURGE, "POST", {**OF_PURGE, "filter": "type=t1", "keep": 60}).body
    gone = api(PURGE, "POST", {**OF_PURGE, "filter": "body.n=2"}).body

    assert (kept["count"], gone["count"]) == (2, 1)
    counts = client.admin.stats("orders")
    assert (counts["retries"] + counts["priority"], counts["dead"], counts["trash"]) == (2, 1, 2)


@pytest.mark.parametrize(
    ("path", "body"),
    [(REDRIVE, {}), (PURGE, OF_PURGE), ("/topics/orders/jobs", {})],
)
def test_a_mistake_in_a_filter_has_its_place(
    api: Ask, client: rmq.Client, path: str, body: dict[str, Any]
) -> None:
    dead(client, 1)

    wrong = api(path, "POST", body | {"filter": 'error~"x" and age>soon'})

    assert (wrong.status, wrong.body["field"], wrong.body["position"]) == (400, "filter", 18)
    assert "a duration" in wrong.body["detail"]
    long = api(path, "POST", body | {"filter": "x" * 2001})
    assert (long.status, long.body["field"], long.body["position"]) == (400, "filter", None)
    assert client.admin.stats("orders")["dead"] == 1


def test_waiting_messages_have_no_filter_and_no_trash(api: Ask, client: rmq.Client) -> None:
    client.topic("orders").send(1)
    given = {"queue": "store", "confirm": "orders"}

    assert api(PURGE, "POST", {**given, "filter": "type=t"}).body["field"] == "filter"
    assert api(PURGE, "POST", {**given, "keep": 60}).body["field"] == "keep"
    assert api(PURGE, "POST", {**given, "dry_run": True}).body == {"count": 1, "sample": []}
    assert api(PURGE, "POST", given).body == {"count": 1, "sample": []}


# --- jobs ----------------------------------------------------------------------------------------


def test_a_job_purges_what_fits_its_filter(api: Ask, client: rmq.Client) -> None:
    ids = dead(client, 4)
    given = {"verb": "purge", "filter": "type=t1", "keep": 60, "expected": 2}

    assert api("/topics/orders/jobs", "POST", given).body["field"] == "confirm"
    started = api("/topics/orders/jobs", "POST", given | {"confirm": "orders"})

    path = f"/jobs/{started.body['id']}"
    ended = until(lambda: (b := api(path).body)["state"] == "done" and b, "the end of the job")
    assert (ended["verb"], ended["keep"], ended["expected"]) == ("purge", 60, 2)
    assert (ended["done"], ended["conditions"]) == (2, {"filter": "type=t1"})
    assert client.admin.stats("orders")["trash"] == 2
    outcomes = api(path + "/outcomes").body["outcomes"]
    assert {(each["id"], each["outcome"]) for each in outcomes} == {
        (ids[1], "done"), (ids[3], "done"),
    }  # fmt: skip
    assert len(api(path + "/outcomes?limit=1").body["outcomes"]) == 1
    assert api("/jobs/orders.00000000/outcomes").status == 404


def test_jobs_are_listed_in_pages(api: Ask, client: rmq.Client) -> None:
    client.topic("orders").open()
    ids = [client.admin.job_start("orders", rate=1).id for _ in range(5)]

    assert sorted(job["id"] for job in walked(api, "/jobs?limit=2", "jobs")) == sorted(ids)
    assert api("/jobs?limit=2").body["jobs"] == api("/jobs?topic=orders&limit=2").body["jobs"]
    assert api("/jobs?topic=other").body == {"jobs": [], "cursor": None}
    assert api("/jobs?cursor=WzFd").body["field"] == "cursor"
