"""`/api/v1`: filters of dead letters, and what a dry run shows."""

from __future__ import annotations

import http.client as client_http
import io
import json
import os
from datetime import datetime
from typing import Any

import pytest

import rmq
from rmq.features.dead_letters import http
from rmq.features.dead_letters.cli import files
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
    gone = api(PURGE, "POST", {**OF_PURGE, "filter": "body.n=2", "keep": 0}).body

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

    wrong = api(path, "POST", body | {"filter": 'error contains "x" and age>soon'})

    assert (wrong.status, wrong.body["field"], wrong.body["position"]) == (400, "filter", 27)
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


# --- groups --------------------------------------------------------------------------------------


def test_dead_letters_are_counted_by_cause(api: Ask, client: rmq.Client) -> None:
    topic = client.topic("orders", slots=2)
    topic.send_many([rmq.Outgoing(n) for n in range(6)])
    with topic.consumer() as consumer:
        for _ in range(6):
            (delivery,) = consumer.receive(1)
            delivery.reject("Timeout: 30 s" if delivery.body else "KeyError: 'tenant'")

    found = api("/topics/orders/dead-letters/groups").body

    assert [group["count"] for group in found["groups"]] == [5, 1]
    assert (found["total"], found["other"]) == (6, 0)
    group = found["groups"][0]
    assert (group["reason"], group["error"]) == ("rejected", "Timeout: 30 s")
    of_group = f"/topics/orders/dead-letters?filter=fingerprint={group['fingerprint']}"
    ids = {each["id"] for each in walked(api, of_group)}
    assert len(ids) == 5
    assert group["example"] in ids
    largest = api("/topics/orders/dead-letters/groups?limit=1").body
    assert (len(largest["groups"]), largest["other"], largest["total"]) == (1, 1, 6)
    few = api("/topics/orders/dead-letters/groups?filter=body.n=1").body
    assert few == {"groups": [], "other": 0, "total": 0, "unread": 0}


@pytest.mark.parametrize("path", ["dead-letters/groups", "trash", "dead-letters"])
def test_a_list_refuses_what_is_no_filter(api: Ask, client: rmq.Client, path: str) -> None:
    client.topic("orders").open()

    wrong = api(f"/topics/orders/{path}?filter=reason%3Dx")

    assert (wrong.status, wrong.body["field"], wrong.body["position"]) == (400, "filter", 7)
    assert api(f"/topics/orders/{path}?limit=501").body["field"] == "limit"
    assert api(f"/topics/none/{path}").status == 404


# --- export --------------------------------------------------------------------------------------

EXPORT, IMPORT = "/topics/orders/dead-letters/export", "/topics/orders/dead-letters/import"


@pytest.mark.parametrize("first", [1, 2, 20])
def test_all_dead_letters_are_exported_for_import(
    api: Ask, client: rmq.Client, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    monkeypatch.setattr(http, "EXPORT_FIRST", first)
    monkeypatch.setattr(http, "EXPORT_BYTES", first * 1100)
    ids = dead(client, 7, slots=2)

    answer = api(EXPORT)

    assert answer.headers["Content-Type"] == "application/x-ndjson"
    lines = answer.body.splitlines()
    read = [files.read_line(line.encode())[1] for line in lines]
    assert sorted(outgoing.id for outgoing in read) == sorted(ids)
    assert {outgoing.type for outgoing in read} == {"t0", "t1"}
    assert sorted(json.loads(outgoing.body)["n"] for outgoing in read) == list(range(7))
    shown = json.loads(lines[0])
    assert (shown["failure"]["error"], len(shown["failure"]["fingerprint"])) == ("why", 12)
    rest = api(f"{EXPORT}?cursor={json.loads(lines[2])['cursor']}").body
    assert rest.splitlines() == lines[3:]


def test_an_export_of_collected_bodies_reads_as_few_as_their_bytes_allow(
    api: Ask, client: rmq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "EXPORT_FIRST", 2)
    monkeypatch.setattr(http, "EXPORT_BYTES", 60_000)
    topic = client.topic("orders", slots=1)
    for key in range(8):
        for _ in range(2):
            topic.send("x" * 10_000, merge_key=str(key), time_range=0.001, merge="collect")
    with topic.consumer() as consumer:
        for _ in range(8):
            (delivery,) = consumer.receive(1, wait=5)
            delivery.reject("why")
    limits, dead_letters = [], rmq.AsyncAdmin.dead_letters

    def noting(self: Any, topic: str, **options: Any) -> Any:
        limits.append(options["limit"])
        return dead_letters(self, topic, **options)

    monkeypatch.setattr(rmq.AsyncAdmin, "dead_letters", noting)

    lines = api(EXPORT).body.splitlines()

    assert len(lines) == 8
    assert {len(json.loads(line)["bodies_base64"]) for line in lines} <= {1, 2}
    assert len(limits) >= 4
    assert max(limits) <= 5, "a line has 13 or 26 KB"


def test_exported_dead_letters_are_imported_by_the_command_line_and_the_api(
    api: Ask, client: rmq.Client
) -> None:
    topic = client.topic("orders")
    ids = [
        client.topic("orders", codec="bytes").send(b"\x00\xff", headers={"k": "v"}).id,
        client.topic("orders", codec="msgpack").send({"k": b"\xff"}).id,
        topic.send("a", merge_key="m", time_range=0.001, merge="collect").id,
    ]
    with topic.consumer() as consumer:
        rejected = 0
        while rejected < len(ids):
            for delivery in consumer.receive(10):
                delivery.reject("why")
                rejected += 1
    before = {id: client.admin.get("orders", id).body for id in ids}
    text = api(EXPORT).body
    given = {"letters": [json.loads(line) for line in text.splitlines()]}
    assert api(IMPORT, "POST", given).body == {"stored": 0, "duplicate": 3}

    client.admin.purge("orders", "dead", keep=0)
    assert api(IMPORT, "POST", given).body == {"stored": 3, "duplicate": 0}
    assert {id: client.admin.get("orders", id).body for id in ids} == before
    assert client.admin.get("orders", ids[0]).headers == {"k": "v"}

    client.admin.purge("orders", "store")
    sender = files.Import(client, "orders")
    sender.run(io.BytesIO(text.encode()))
    assert sender.counts == {"stored": 3, "duplicate": 0, "bad": 0}
    assert {id: client.admin.get("orders", id).body for id in ids} == before


@pytest.mark.parametrize(
    ("changed", "detail"),
    [
        ({"body_base64": "?"}, "letters[1]"),
        ({"body_base64": "bm8="}, "letters[1]: its body cannot be read"),  # no JSON
        ({"codec": 2, "body_base64": "wQ=="}, "letters[1]: its body cannot be read"),
        ({"codec": 3, "body_base64": "EW5v"}, "letters[1]: its body cannot be read"),
        ({"body_base64": None}, "letters[1]: give one of"),
        ({"bodies_base64": ["MQ=="]}, "letters[1]: give one of"),
        ({"body_base64": None, "bodies_base64": ["Ww=="]}, "letters[1]: its body"),
        ({"codec": 4}, "$.letters[1].codec"),
        ({"id": "x"}, "$.letters[1].id"),
        ({"priority": 3}, "priority: 3"),
    ],
)
def test_an_import_with_a_mistake_sends_nothing(
    api: Ask, client: rmq.Client, changed: dict[str, Any], detail: str
) -> None:
    ids = dead(client, 2)
    letters = [json.loads(line) for line in api(EXPORT).body.splitlines()]
    client.admin.purge("orders", "dead", keep=0)

    refused = api(IMPORT, "POST", {"letters": [letters[0], letters[1] | changed]})

    assert (refused.status, detail in refused.body["detail"]) == (400, True)
    assert [client.admin.get("orders", id) for id in ids] == [None, None]
    assert api("/topics/none/dead-letters/import", "POST", {"letters": []}).status == 404


def test_an_export_of_some_or_none_and_of_a_mistake(api: Ask, client: rmq.Client) -> None:
    dead(client, 4)

    some = api(f"{EXPORT}?filter=type%3Dt1").body.splitlines()
    assert len(some) == 2
    none = api(f"{EXPORT}?filter=age%3E1h")
    assert (none.status, none.body) == (200, "")
    wrong = api(f"{EXPORT}?filter=age")
    assert (wrong.status, wrong.body["field"], wrong.body["position"]) == (400, "filter", 3)
    assert api(f"{EXPORT}?cursor=x").body["field"] == "cursor"
    assert api("/topics/none/dead-letters/export").status == 404
    head = api(EXPORT, "HEAD")
    assert (head.status, head.body) == (200, "")


def test_an_export_that_ends_early_is_noticed(
    api: Ask, client: rmq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "EXPORT_FIRST", 2)
    dead(client, 4)
    read = rmq.AsyncAdmin.dead_letters
    calls = []

    async def fails_later(*args: Any, **options: Any) -> Any:
        calls.append(options["cursor"])
        if len(calls) > 1:
            raise rmq.Unavailable("away")
        return await read(*args, **options)

    monkeypatch.setattr(rmq.AsyncAdmin, "dead_letters", fails_later)

    with pytest.raises(client_http.IncompleteRead):
        api(EXPORT)
    assert len(calls) == 2


# --- the trash -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "kept"), [({}, 3), ({"keep": 0}, 0)])
def test_purged_letters_go_to_the_trash_for_a_day_unless_the_request_says_otherwise(
    api: Ask, client: rmq.Client, given: dict[str, Any], kept: int
) -> None:
    dead(client, 3)
    now = client.admin.stats("orders")["now_ms"] / 1000

    assert api(PURGE, "POST", OF_PURGE | given).body["count"] == 3

    listed = walked(api, "/topics/orders/trash")
    assert len(listed) == client.admin.stats("orders")["trash"] == kept
    for each in listed:
        assert 86_400 <= datetime.fromisoformat(each["deadline"]).timestamp() - now < 86_460


def test_waiting_messages_are_purged_without_a_word_about_the_trash(
    api: Ask, client: rmq.Client
) -> None:
    client.topic("orders").send("x")

    assert api(PURGE, "POST", OF_PURGE | {"queue": "store"}).body["count"] == 1


def test_purged_letters_are_in_the_trash_until_they_are_restored(
    api: Ask, client: rmq.Client
) -> None:
    ids = dead(client, 5, slots=2)
    died = {id: api(f"/topics/orders/messages/{id}").body["died"] for id in ids}
    api(PURGE, "POST", {**OF_PURGE, "filter": "body.n<4", "keep": 3600})

    listed = walked(api, "/topics/orders/trash?limit=1")
    assert {each["id"] for each in listed} == set(ids[:4])
    assert {each["queue"] for each in listed} == {"trash"}
    assert all(each["deadline"] for each in listed)
    of_type = "/topics/orders/trash?filter=type%3Dt1"
    assert {each["id"] for each in walked(api, of_type)} == {ids[1], ids[3]}
    assert walked(api, "/topics/orders/trash?filter=age%3E%3D0s") == []
    assert len(walked(api, "/topics/orders/dead-letters?filter=age%3E%3D0s")) == 1, "the control"

    path = "/topics/orders/trash/restore"
    dry = api(path, "POST", {"filter": "type=t1", "dry_run": True}).body
    assert (dry["count"], {each["id"] for each in dry["sample"]}) == (2, {ids[1], ids[3]})
    long = " or ".join(["body.n=1"] * 50)
    dry = api(path, "POST", {"filter": long, "type": "t1", "dry_run": True}).body
    assert [each["id"] for each in dry["sample"]] == [ids[1]]
    named = api(path, "POST", {"ids": ids[3:], "dry_run": True}).body
    assert [each["id"] for each in named["sample"]] == [ids[3]]
    assert client.admin.stats("orders")["trash"] == 4

    assert api(path, "POST", {"filter": "type=t1"}).body == {"count": 2, "sample": []}
    assert api(path, "POST", {"reason": "rejected"}).body["count"] == 2
    assert api(path, "POST", {}).body["count"] == 0
    assert {id: api(f"/topics/orders/messages/{id}").body["died"] for id in ids} == died


def test_a_restore_has_no_condition_by_age(api: Ask, client: rmq.Client) -> None:
    dead(client, 1)
    api(PURGE, "POST", {**OF_PURGE, "keep": 3600})

    refused = api("/topics/orders/trash/restore", "POST", {"older_than": 1})

    assert (refused.status, refused.body["field"]) == (400, "older_than")
    assert api("/topics/orders/trash/restore", "POST", {"filter": "x"}).body["position"] == 0
    assert client.admin.stats("orders")["trash"] == 1


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


def test_a_dead_letter_has_its_attempts_over_a_redrive(api: Ask, client: rmq.Client) -> None:
    (id,) = dead(client, 1)
    client.admin.redrive("orders")
    with client.topic("orders").consumer() as consumer:
        consumer.receive(1)[0].reject(KeyError("b"))

    listed = api("/topics/orders/dead-letters").body["messages"][0]
    shown = api(f"/topics/orders/messages/{id}").body

    assert shown["attempts"] == listed["attempts"]
    assert [(each["number"], each["reason"]) for each in shown["attempts"]] == [
        (2, "rejected"), (None, "redriven"), (1, "rejected"),
    ]  # fmt: skip
    newest = shown["attempts"][0]
    assert (newest["error"], newest["at"]) == ("KeyError: 'b'", shown["died"])
    assert newest["worker"].endswith(f":{os.getpid()}")
