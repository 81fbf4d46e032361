"""`/api/v1` on a real Redis: what each verb answers and changes."""

from __future__ import annotations

import base64
import json
import re
from typing import Any
from urllib.parse import quote

import pytest

import rmq
from rmq.features.topic_admin import http
from rmq.features.topic_admin.service import Sampler
from rmq.http_framework import message as web_message, requests
from rmq.kernel.core.settings import TopicSettings
from tests.server.conftest import Ask
from tests.server.running import ask, dead, serving, until, walked
from tests.servers import Server as Redis

# --- topics --------------------------------------------------------------------------------------


def test_a_topic_is_created_changed_paused_and_deleted(api: Ask, client: rmq.Client) -> None:
    created = api("/topics", "POST", {"name": "orders", "settings": {"slots": 2, "lease": 60}})
    assert (created.status, created.body["settings"]["lease"]) == (201, 60)
    assert api("/topics", "POST", {"name": "orders"}).status == 409

    for value in (150, "first"):
        changed = api("/topics/orders/settings", "PATCH", {"timed_priority": value})
        assert changed.body["settings"]["timed_priority"] == value
    changed = api("/topics/orders/settings", "PATCH", {"lease": 90, "limit": "rate:5:1s"})
    assert changed.status == 200
    assert client.admin.settings("orders").lease_ms == 90_000
    for given, kept in (("p99 < 2s", "p99<2s"), (None, "off")):
        slo = api("/topics/orders/settings", "PATCH", {"slo": given})
        assert slo.body["settings"]["slo"] == kept
    assert api("/topics/orders/settings", "PATCH", {"slo": "p97<2s"}).body["field"] == "slo"
    refused = api("/topics/orders/settings", "PATCH", {"slots": 3})
    assert (refused.status, refused.body["field"]) == (400, "slots")

    paused = api("/topics/orders/pause", "POST", {"by": "me", "why": "deploy"})
    assert (paused.body["by"], paused.body["why"]) == ("me", "deploy")
    assert api("/topics/orders").body["paused"] == paused.body
    assert api("/topics/orders/resume", "POST", {}).body["was"] == paused.body
    assert api("/topics/orders/resume", "POST", {}).body["was"] is None

    client.topic("orders").send(1)
    assert api("/topics/orders?confirm=other", "DELETE").body["field"] == "confirm"
    assert api("/topics/orders", "DELETE").status == 400
    assert api("/topics/orders?confirm=orders", "DELETE").status == 409
    counted = api("/topics/orders?confirm=orders&force=true&dry_run=true", "DELETE")
    assert (counted.body["waiting"], client.admin.topics()) == (1, ["orders"])
    assert api("/topics/orders?confirm=orders&force=true", "DELETE").status == 200
    assert client.admin.topics() == []
    assert api("/topics/orders").body["type"] == "urn:rmq:error:topic-not-found"


def test_every_setting_can_be_sent() -> None:
    assert set(http.Settings.__struct_fields__) == set(TopicSettings.__annotations__)


def test_topics_are_listed_in_pages(api: Ask, client: rmq.Client) -> None:
    names = sorted(f"t{n}" for n in range(5))
    for name in names:
        client.topic(name).open()

    found, path = [], "/topics?limit=2"
    while True:
        page = api(path).body
        found.append(page["topics"])
        if page["cursor"] is None:
            break
        path = f"/topics?limit=2&cursor={page['cursor']}"

    assert found == [names[:2], names[2:4], names[4:]]
    assert api("/topics?contains=3").body["topics"] == ["t3"]
    assert api("/topics?limit=501").body["field"] == "limit"
    assert api("/topics?cursor=xyz").body["field"] == "cursor"
    assert api("/topics?other=1").status == 400
    assert api("/topics?limit=1&limit=2").status == 400


def test_a_topic_that_has_not_changed_is_not_sent_again(api: Ask, client: rmq.Client) -> None:
    client.topic("orders").open()
    etag = api("/topics/orders").headers["ETag"]

    assert api("/topics/orders", headers={"If-None-Match": etag}).status == 304
    client.admin.topic_set("orders", lease=77)
    assert api("/topics/orders", headers={"If-None-Match": etag}).status == 200


def test_settings_that_somebody_has_changed_meanwhile_are_not_overwritten(
    api: Ask, client: rmq.Client
) -> None:
    client.topic("orders").open()
    path = "/topics/orders/settings"
    etag = api("/topics/orders").headers["ETag"]

    mine = api(path, "PATCH", {"lease": 90}, {"If-Match": etag})
    yours = api(path, "PATCH", {"lease": 300}, {"If-Match": etag})

    assert (mine.status, yours.status) == (200, 412)
    assert (yours.body["type"], yours.body["field"]) == ("urn:rmq:error:changed", "If-Match")
    assert client.admin.settings("orders").lease_ms == 90_000
    assert mine.headers["ETag"] == api("/topics/orders").headers["ETag"]
    assert api(path, "PATCH", {"lease": 300}, {"If-Match": mine.headers["ETag"]}).status == 200
    client.admin.topic_pause("orders")
    read = client.admin.settings("orders")
    client.admin.topic_resume("orders")
    with pytest.raises(rmq.SettingsMismatch, match="changed meanwhile"):
        client.admin.topic_set("orders", unless_changed=read, lease=5)
    assert api(path, "PATCH", {"lease": 60}, {"If-Match": "*"}).status == 200
    assert api(path, "PATCH", {"lease": 61}).status == 200  # the control: who asks for nothing


def test_counts_are_those_of_admin(api: Ask, client: rmq.Client) -> None:
    topic = client.topic("orders", slots=2)
    topic.send_many([rmq.Outgoing(n) for n in range(5)])

    assert api("/topics/orders/stats").body["counts"]["priority"] == 5
    by_slot = api("/topics/orders/stats/slots").body["slots"]
    assert [slot["priority"] for slot in by_slot] == [
        slot["priority"] for slot in client.admin.stats_by_slot("orders")
    ]
    assert api("/topics/orders/rollback", "POST", {}).body == {"count": 0}


def test_the_history_is_what_the_server_has_sampled(
    server: Redis, client: rmq.Client, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sampler, "every_s", 0.1)
    client.topic("orders").send(1)
    with serving(server.url, prefix) as running:
        url = running.url + "/api/v1/topics/orders/samples"
        path = f"{url}?since=60&step=10"
        samples = until(lambda: ask(path).body["samples"], "a sample")
        assert samples[-1]["counts"]["priority"] == 1
        assert ask(url + "?step=15").body["field"] == "step"


# --- messages ------------------------------------------------------------------------------------


def test_a_message_is_sent_found_changed_and_cancelled(api: Ask, client: rmq.Client) -> None:
    client.topic("orders").open()
    order = {"body": {"n": 2**70}, "delay": 60, "headers": {"k": "v"}, "type": "a", "priority": 20}
    sent = api("/topics/orders/messages", "POST", order)
    assert (sent.status, sent.body["status"]) == (201, "stored")
    path = f"/topics/orders/messages/{sent.body['id']}"

    found = api(path).body
    assert found["body"] == {
        "kind": "json", "text": json.dumps({"n": 2**70}), "size": 29, "is_truncated": False,
    }  # fmt: skip
    assert (found["headers"], found["type"], found["priority"]) == ({"k": "v"}, "a", 20)
    assert api(path + "/priority", "POST", {"priority": 30}).body == {"status": "changed"}
    assert api(path + "/reschedule", "POST", {"delay": 5}).body == {"status": "rescheduled"}
    assert api(path + "/cancel", "POST", {}).body == {"status": "cancelled"}
    assert api(path + "/cancel", "POST", {}).body == {"status": "gone"}
    assert api(path).body["type"] == "urn:rmq:error:not-found"


def test_a_running_message_is_cancelled_on_request(api: Ask, client: rmq.Client) -> None:
    topic = client.topic("orders")
    path = f"/topics/orders/messages/{topic.send(1).id}/cancel"
    with topic.consumer() as consumer:
        (delivery,) = consumer.receive(wait=5)
        assert api(path, "POST", {}).body == {"status": "in_flight"}
        assert api(path, "POST", {"running": True}).body == {"status": "requested"}
        assert api(path, "POST", {"running": True}).body == {"status": "already_requested"}
        delivery.nack()
    assert api(path, "POST", {"running": True}).body == {"status": "gone"}


def test_messages_of_a_group_are_sent_shown_and_filtered(api: Ask, client: rmq.Client) -> None:
    made = api("/topics", "POST", {"name": "orders", "settings": {"groups": "order"}})
    group = {"group": "a", "share_key": "s", "weight": 2}
    sent = [api("/topics/orders/messages", "POST", {"body": n} | group) for n in range(2)]
    api("/topics/orders/messages", "POST", {"body": 2, "group": "b"})

    held = api(f"/topics/orders/messages/{sent[1].body['id']}").body
    of_a = api("/topics/orders/peek?group=a").body["messages"]
    wrong = api("/topics/orders/messages", "POST", {"body": 1, "weight": 2})

    assert made.body["settings"]["groups"] == "order"
    assert (held["group"], held["share_key"], held["held"]) == ("a", "s", True)
    assert [(each["body"]["text"], each["held"]) for each in of_a] == [("0", False), ("1", True)]
    assert (wrong.status, wrong.body["field"]) == (400, "weight")


def test_a_send_that_is_repeated_stores_nothing(api: Ask, client: rmq.Client) -> None:
    client.topic("orders").open()
    first, again = (
        api("/topics/orders/messages", "POST", {"body": 1, "dedup_key": "7"}).body for _ in "ab"
    )
    assert (first["status"], again["status"]) == ("stored", "duplicate")
    assert first["id"] == again["id"]


def test_a_send_to_no_topic_makes_none(api: Ask, client: rmq.Client) -> None:
    assert api("/topics/orders/messages", "POST", {"body": 1}).status == 404
    assert client.admin.topics() == []


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        ({}, "body"),
        ({"body": 1, "body_base64": "YQ=="}, "body"),
        ({"body_base64": "?"}, "body_base64"),
        ({"body": 1, "priority": 5}, "priority"),
        ({"body": 1, "delay": -1}, "delay"),
        ({"body": 1, "other": 1}, "other"),
        ({"body": 1, "at": "2026-01-01T00:00:00"}, "at"),
    ],
)
def test_a_send_that_cannot_work_names_the_field(
    api: Ask, client: rmq.Client, sent: Any, field: str
) -> None:
    client.topic("orders").open()
    refused = api("/topics/orders/messages", "POST", sent)
    assert (refused.status, refused.body["field"]) == (400, field)


def test_bodies_are_shown_as_text_json_or_base64_and_cut(api: Ask, client: rmq.Client) -> None:
    topic = client.topic("orders")
    topic.open()
    sent = api("/topics/orders/messages", "POST", {"body_base64": "AP8="}).body["id"]
    assert client.admin.get("orders", sent).body == b"\x00\xff"
    ids = [
        sent,
        topic.send("a\N{EURO SIGN}" * 30_000).id,
        client.topic("orders", codec="msgpack").send({"k": b"\xff"}).id,
    ]

    shown = [api(f"/topics/orders/messages/{id}").body["body"] for id in ids]

    assert [body["kind"] for body in shown] == ["base64", "text", "text"]
    assert base64.b64decode(shown[0]["text"]) == b"\x00\xff"
    assert (shown[1]["size"], shown[1]["is_truncated"]) == (120_000, True)
    assert len(shown[1]["text"].encode()) in range(64 * 1024 - 3, 64 * 1024 + 1)
    assert shown[2]["text"] == "{'k': b'\\xff'}"
    assert web_message.body_of("\ud800").text == "?", "JSON of another program may have half a pair"


@pytest.mark.parametrize("limit", [1, 3, 500])
def test_every_message_of_a_type_is_on_one_page(api: Ask, client: rmq.Client, limit: int) -> None:
    topic = client.topic("orders", slots=2)
    sent = topic.send_many([rmq.Outgoing(n, type=f"t{n % 3}") for n in range(9)])

    found = walked(api, f"/topics/orders/peek?type=t1&limit={limit}")

    assert sorted(each["id"] for each in found) == sorted(str(r.id) for r in sent[1::3])
    assert walked(api, "/topics/orders/peek?type=none") == []


@pytest.mark.parametrize("limit", [1, 3, 500])
def test_every_message_of_a_queue_is_on_one_page(api: Ask, client: rmq.Client, limit: int) -> None:
    topic = client.topic("orders", slots=3)
    at = rmq.Outgoing(0, delay=3600).delay
    ids = {str(r.id) for r in topic.send_many([rmq.Outgoing(n, delay=at) for n in range(7)])}
    ids |= {str(r.id) for r in topic.send_many([rmq.Outgoing(n) for n in range(7)])}

    found = walked(api, f"/topics/orders/messages?limit={limit}")

    assert len(found) == 14
    assert {message["id"] for message in found} == ids
    by_slot = [len(walked(api, f"/topics/orders/messages?limit=4&slot={n}")) for n in range(3)]
    assert sum(by_slot) == 14
    peeked = walked(api, f"/topics/orders/peek?limit={limit}")
    assert sorted(message["id"] for message in peeked) == sorted(ids)
    assert api("/topics/orders/peek?cursor=x").body["field"] == "cursor"
    assert api("/topics/orders/messages?slot=3").body["field"] == "slot"


# --- dead letters --------------------------------------------------------------------------------


def test_dead_letters_are_filtered_redriven_and_purged(api: Ask, client: rmq.Client) -> None:
    ids = dead(client, 6, slots=2)

    listed = walked(api, "/topics/orders/dead-letters?limit=2")
    assert {each["id"] for each in listed} == set(ids)
    assert listed[0]["failure"]["reason"] == "rejected"
    assert len(listed[0]["failure"]["fingerprint"]) == 12
    for text, count in (
        ("type=t1", 3), ("reason=failed", 0), ("age>1h", 0), ("body.n>=2 and not type=t1", 2),
    ):  # fmt: skip
        found = walked(api, f"/topics/orders/dead-letters?limit=2&filter={quote(text)}")
        assert len(found) == count, text
    wrong = api("/topics/orders/dead-letters?filter=reason+contains")
    assert (wrong.status, wrong.body["field"], wrong.body["position"]) == (400, "filter", 15)

    path = "/topics/orders/dead-letters/redrive"
    assert api(path, "POST", {"type": "t1", "dry_run": True}).body["matched"] == 3
    assert api(path, "POST", {"ids": ids[:1]}).body == {
        "matched": 1, "sent": 1, "unreadable": 0, "refused": {}, "sample": [],
    }  # fmt: skip
    wrong = api("/topics/orders/purge", "POST", {"queue": "dead", "confirm": "order"})
    assert wrong.body["field"] == "confirm"
    assert client.admin.stats("orders")["dead"] == 5
    purged = api("/topics/orders/purge", "POST", {"queue": "dead", "confirm": "orders"})
    assert purged.body == {"count": 5, "sample": []}
    assert client.admin.stats("orders")["dead"] == 0


def test_a_walk_over_many_dead_letters_ends_and_goes_on(
    api: Ask, client: rmq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rmq.http_framework import message

    monkeypatch.setattr(message, "WALKED_MAX", 2)
    monkeypatch.setattr(requests, "LIMIT_MAX", 2)
    dead(client, 7)

    first = api("/topics/orders/dead-letters?filter=reason=failed").body
    assert first["messages"] == []
    assert first["cursor"] is not None
    assert len(walked(api, "/topics/orders/dead-letters?filter=reason=rejected")) == 7


def test_a_job_is_started_and_goes_on_by_itself(api: Ask, client: rmq.Client) -> None:
    dead(client, 6)

    started = api("/topics/orders/jobs", "POST", {"type": "t1", "by": "me"})
    assert (started.status, started.body["by"]) == (201, "me")
    path = f"/jobs/{started.body['id']}"

    ended = until(lambda: (b := api(path).body)["state"] == "done" and b, "the end of the job")
    assert (ended["done"], ended["conditions"]) == (3, {"type": "t1"})
    assert client.admin.stats("orders")["dead"] == 3
    assert [each["id"] for each in api("/jobs?topic=orders").body["jobs"]] == [ended["id"]]
    assert api(path + "/stop", "POST", {}).body == {"done": False}
    assert api("/jobs/orders.00000000").status == 404


def test_a_request_that_is_repeated_under_its_key_starts_one_job(
    api: Ask, client: rmq.Client
) -> None:
    dead(client, 2)
    path, key = "/topics/orders/jobs", {"Idempotency-Key": "k1"}

    first, again = (api(path, "POST", {"type": "t1"}, key) for _ in range(2))
    other = api(path, "POST", {"type": "t1"}, {"Idempotency-Key": "k2"})
    for_else = api(path, "POST", {"type": "t0"}, key)

    assert (first.status, again.status) == (201, 201)
    assert first.body["id"] == again.body["id"] != other.body["id"]
    assert (for_else.status, for_else.body["field"]) == (400, "dedup_key")
    until(lambda: api(f"/jobs/{first.body['id']}").body["state"] == "done", "the end of the job")
    late = api(path, "POST", {"type": "t1"}, key)
    assert (late.body["id"], late.body["state"]) == (first.body["id"], "done")
    started = [line for line in client.admin.audit_trail() if line.what == "job start"]
    assert [line.subject for line in started].count(first.body["id"]) == 1
    assert {job.id for job in client.admin.jobs()} == {first.body["id"], other.body["id"]}


def test_dead_letters_go_to_another_topic_at_once_or_by_a_job(api: Ask, client: rmq.Client) -> None:
    ids = dead(client, 6)
    client.topic("other", max_length=4).open()
    path = "/topics/orders/dead-letters/redrive"

    missing = api(path, "POST", {"to": "nowhere"})
    itself = api("/topics/orders/jobs", "POST", {"to": "orders"})
    done = api(path, "POST", {"to": "other", "ids": ids[:1]})
    started = api("/topics/orders/jobs", "POST", {"to": "other"})

    assert (missing.status, itself.status) == (404, 400)
    assert (done.body["sent"], done.body["refused"]) == (1, {})
    assert started.body["to"] == "other"
    job = f"/jobs/{started.body['id']}"
    ended = until(lambda: (b := api(job).body)["state"] == "done" and b, "the end of the job")
    assert (ended["done"], ended["refused"]) == (3, {"full": 2})
    assert (client.admin.stats("orders")["dead"], client.admin.stats("other")["accepted"]) == (2, 4)
    outcomes = [each["outcome"] for each in api(f"{job}/outcomes").body["outcomes"]]
    assert sorted(outcomes) == ["done", "done", "done", "full", "full"]


def test_a_job_is_paused_resumed_and_stopped(api: Ask, client: rmq.Client) -> None:
    dead(client, 6)
    path = "/jobs/" + api("/topics/orders/jobs", "POST", {"rate": 0.5}).body["id"]

    for verb, done in (("pause", True), ("pause", False), ("resume", True), ("stop", True)):
        assert api(f"{path}/{verb}", "POST", {}).body == {"done": done}, verb
    until(lambda: api(path).body["state"] == "stopped", "the end of the job")


# --- the rest ------------------------------------------------------------------------------------


def test_schedules_are_operated(api: Ask, client: rmq.Client) -> None:
    client.topic("orders").every("nightly", every=3600, body={"n": 1}).declare()
    path = "/topics/orders/schedules/nightly"

    assert [each["name"] for each in api("/topics/orders/schedules").body["schedules"]] == [
        "nightly"
    ]
    found = api(path).body
    assert (found["every"], found["body"]["text"], found["paused"]) == (3600, '{"n": 1}', False)
    assert api(path + "/pause", "POST", {}).body == {"done": True}
    assert api(path + "/resume", "POST", {}).body == {"done": True}
    assert api(path + "/run", "POST", {}).status == 201
    assert client.admin.stats("orders")["accepted"] == 1
    assert api(path, "DELETE").body == {"done": True}
    assert api(path).status == 404


def test_queries_sinks_and_claims_are_operated(api: Ask, client: rmq.Client) -> None:
    topic = client.topic("orders", retry="immediate")
    topic.send_many([rmq.Outgoing(n) for n in range(3)])
    run = "a" * 32
    topic.query(run, "there").take({})

    (held,) = api("/topics/orders/queries").body["queries"]
    assert (held["run"], held["messages"]) == (run, 3)
    path = f"/topics/orders/queries/{run}/release"
    assert api(path, "POST", {}).status == 409
    assert api(path, "POST", {"force": True}).body == {"count": 3}
    assert api("/topics/orders/sinks").body == {"sinks": []}
    assert api("/topics/orders/sinks?query=q", "DELETE").body == {"done": False}

    with topic.consumer() as consumer:
        rmq.Claims().first(consumer.receive(), key=lambda body: "7")
        assert api("/topics/orders/claims?key=7").body["state"] == "consuming"
        assert api("/topics/orders/claims?key=7", "DELETE").body == {"done": True}
        assert api("/topics/orders/claims?key=7").status == 404


def test_the_server_tells_of_itself(api: Ask) -> None:
    about = api("/info").body
    assert about["version"] == rmq.__version__
    assert re.match(r"\d+\.\d+", about["redis_version"])
    assert {each["name"] for each in api("/services").body["services"]} >= {"survey", "rollback"}
    assert api("/workers").body == {"workers": []}


# --- requests that cannot work -------------------------------------------------------------------


def test_errors_are_problems_with_the_id_of_the_request(api: Ask) -> None:
    missing = api("/topics/none")

    assert missing.headers["Content-Type"] == "application/problem+json"
    assert missing.body["request_id"] == missing.headers["X-Request-Id"]
    assert (missing.body["status"], missing.status) == (404, 404)
    assert "redis://" not in missing.body["detail"]
    assert api("/nothing").headers["Content-Type"] == "application/problem+json"


def test_methods_that_a_path_does_not_have_are_refused_and_head_works(api: Ask) -> None:
    refused = api("/topics", "PUT", {})
    assert refused.status == 405
    assert {each.strip() for each in refused.headers["Allow"].split(",")} >= {"GET", "POST"}
    for method in ("TRACE", "OPTIONS", "DELETE"):
        assert api("/topics", method).status == 405
    head = api("/topics", "HEAD")
    assert (head.status, head.body) == (200, "")
    assert int(head.headers["Content-Length"]) > 0


def test_nothing_is_changed_by_a_get(api: Ask) -> None:
    from rmq.server.api import TABLES

    writes = {each.path for table in TABLES for each in table.operations if not each.is_read}
    reads = {each.path for table in TABLES for each in table.operations if each.is_read}
    for path in writes - reads:
        known = {"topic": "t", "id": "0" * 26, "run": "a" * 32, "name": "n", "job": "t.00000000"}
        assert api(path.format(**known)).status == 405


def test_a_body_must_be_json_and_small(api: Ask) -> None:
    wrong = {"Content-Type": "text/plain"}
    assert api("/topics", "POST", {"name": "t"}, headers=wrong).status == 415
    assert api("/topics", "POST", b"{").status == 400
    assert api("/topics", "POST", b"\xff").status == 400
    told = {"Content-Length": str(1024 * 1024 + 1)}  # refused before the body comes
    assert api("/topics", "POST", b"{", headers=told).status == 413
    chunked = {"Transfer-Encoding": "chunked"}
    assert api("/topics", "POST", b"0\r\n\r\n", headers=chunked).status == 400


def test_a_body_that_is_nested_too_deeply_is_refused(api: Ask, client: rmq.Client) -> None:
    client.topic("orders").open()
    for depth in (500, 5_000, 400_000):
        nested = b'{"body": ' + b"[" * depth + b"]" * depth + b"}"
        sent = api("/topics/orders/messages", "POST", nested)
        assert sent.status in ((201,) if depth == 500 else (201, 400))
        if sent.status == 201:
            assert api(f"/topics/orders/messages/{sent.body['id']}").status == 200
    deep: Any = []
    for _ in range(100_000):  # Python 3.13 writes 5 000
        deep = [deep]
    assert web_message.body_of({"k": deep}).kind == "text"
