"""Jobs that cancel many messages, on a real Redis."""

from __future__ import annotations

import re
from typing import Any

import pytest

import rmq
from rmq.features.dead_letters.jobs import run as jobs_run
from rmq.server import Server
from tests.server.conftest import Ask
from tests.server.console.fetching import csrf_of, fetch
from tests.server.running import serving, until
from tests.server.test_jobs import die_in
from tests.servers import Server as Redis


def orders(client: rmq.Client, count: int, **settings: Any) -> rmq.Topic:
    """A topic with as many messages of customer 7 as of customer 8."""
    topic = client.topic("orders", **settings)
    topic.send_many([rmq.Outgoing({"customer": 7 + n % 2, "n": n}) for n in range(count)])
    return topic


SEVEN = {"filter": "body.customer=7"}


def test_waiting_messages_that_match_are_deleted_and_the_others_stay(client: rmq.Client) -> None:
    topic = orders(client, 60, slots=3)
    topic.send({"customer": 7}, delay=3600)
    topic.send({"customer": 7}, priority=900)
    topic.send({"customer": 7}, dedup_key="k")
    assert client.admin.job_matches("orders", "cancel", conditions=SEVEN) == 33

    started = client.admin.job_start("orders", "cancel", conditions=SEVEN, expected=33)
    job = client.admin.job_run(started.id)

    assert (job.state, job.done, job.requested, job.gone, job.refused) == ("done", 33, 0, 0, {})
    assert client.admin.stats("orders")["cancelled"] == 33
    left = client.admin.peek("orders", 100)
    assert len(left) == 30
    assert {message.body["customer"] for message in left} == {8}
    assert {each.outcome for each in client.admin.job_outcomes(job.id)} == {"done"}
    assert topic.send({"customer": 7}, dedup_key="k").status == "stored"
    lines = [line.text for line in client.admin.audit_trail()]
    assert lines == ["cancel: done, 33 done, 0 gone, 0 unreadable", "cancel filter=body.customer=7"]


def test_messages_in_flight_stay_unless_the_job_also_cancels_them(client: rmq.Client) -> None:
    topic = orders(client, 10)
    with topic.consumer() as consumer:
        held = consumer.receive(6, wait=5)
        plain = client.admin.job_start("orders", "cancel", conditions=SEVEN)
        assert client.admin.job_run(plain.id).done == 2
        assert client.admin.job_matches("orders", "cancel", conditions=SEVEN) == 0
        assert client.admin.job_matches("orders", "cancel", conditions=SEVEN, running=True) == 3

        job = client.admin.job_start("orders", "cancel", conditions=SEVEN, running=True)
        job = client.admin.job_run(job.id)

        assert (job.done, job.requested, job.refused, job.running) == (0, 3, {}, True)
        assert client.admin.job_matches("orders", "cancel", conditions=SEVEN, running=True) == 0
        again = client.admin.job_start("orders", "cancel", conditions=SEVEN, running=True)
        assert client.admin.job_run(again.id).matched == 0, "their requests are stored already"
        for delivery in held:
            delivery.nack()
    assert client.admin.stats("orders")["cancelled"] == 5
    left = [message.body["customer"] for message in client.admin.peek("orders", 100)]
    assert left == [8] * 5


def test_message_that_is_given_back_during_the_search_is_found(
    client: rmq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = orders(client, 3)
    with topic.consumer() as consumer:
        held = consumer.receive(2, wait=5)
        read, queues = jobs_run._Search._read, list[str]()

        def give_back(self: jobs_run._Search, keys: Any) -> Any:
            """Both messages wait again after the waiting messages were read."""
            queue = self._queues[self._cursor.turn]
            if queue == "prepare" and "prepare" not in queues:
                for delivery in held:
                    delivery.release()
            queues.append(queue)
            return (yield from read(self, keys))

        monkeypatch.setattr(jobs_run._Search, "_read", give_back)
        job = client.admin.job_start("orders", "cancel", running=True)
        job = client.admin.job_run(job.id)

    assert (job.done, job.requested) == (3, 0)
    assert [*dict.fromkeys(queues)] == ["store", "prepare"]


def test_what_is_sent_after_the_start_stays(client: rmq.Client) -> None:
    topic = orders(client, 10, slots=2)
    job = client.admin.job_start("orders", "cancel", running=True)
    for options in ({"priority": 17}, {"priority": 900}, {"delay": 60}):
        topic.send({"customer": 7}, **options)
    with topic.consumer() as consumer:
        held = []
        while len(held) < 8:
            held += consumer.receive(8 - len(held), wait=5)

        job = client.admin.job_run(job.id)

        for delivery in held:
            delivery.nack()
    assert job.done + job.requested == 10
    counts = client.admin.stats("orders")
    assert (counts["cancelled"], counts["accepted"]) == (10, 13)


def test_many_new_messages_do_not_hold_up_a_job(
    client: rmq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new messages are examined in steps, between which the job keeps its lease."""
    monkeypatch.setattr(jobs_run, "EXAMINED_MAX", 100)
    topic = orders(client, 2)
    job = client.admin.job_start("orders", "cancel")
    topic.send_many([rmq.Outgoing(n, priority=20) for n in range(1000)])

    job = client.admin.job_run(job.id)

    assert (job.state, job.done, job.examined) == ("done", 2, 1002)


@pytest.mark.parametrize("forgotten", [False, True])
def test_job_whose_runner_is_killed_counts_each_message_once(
    client: rmq.Client,
    monkeypatch: pytest.MonkeyPatch,
    server: Redis,
    prefix: str,
    forgotten: bool,
) -> None:
    monkeypatch.setattr(jobs_run, "HOLD_MS", 1)
    topic = orders(client, 8)
    with topic.consumer() as consumer:
        held = consumer.receive(3, wait=5)
        job = client.admin.job_start("orders", "cancel", running=True)
        die_in(client, job)  # after the waiting messages
        monkeypatch.setattr(jobs_run, "BATCH_MIN", 1)
        if forgotten:  # as after some minutes
            raw = server.raw()
            slot = f"{prefix}:{{orders_0}}:slot"
            raw.hdel(slot, *[name for name in raw.hkeys(slot) if name.startswith(b"@job")])
            monkeypatch.setattr(jobs_run, "REMEMBERED_MS", -1)
        for _ in range(2):  # twice: after the deliveries as well
            die_in(client, job)

        ended = client.admin.job_run(job.id)

        assert (ended.state, ended.done, ended.requested, ended.refused) == ("done", 5, 3, {})
        assert ended.gone == 0
        assert [delivery.nack() for delivery in held]
    assert client.admin.stats("orders")["cancelled"] == 8


def test_control_a_call_whose_answer_is_not_kept_counts_wrong(
    client: rmq.Client, server: Redis, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_run, "HOLD_MS", 1)
    orders(client, 4)
    job = client.admin.job_start("orders", "cancel")
    die_in(client, job)
    raw = server.raw()
    slot = f"{prefix}:{{orders_0}}:slot"
    raw.hdel(slot, *[name for name in raw.hkeys(slot) if name.startswith(b"@job")])

    ended = client.admin.job_run(job.id)

    assert (ended.done, ended.gone) == (0, 4), "they were cancelled, and the job does not know it"


def test_group_goes_on_and_a_message_of_a_query_is_refused(client: rmq.Client) -> None:
    topic = client.topic("orders", groups=rmq.Groups())
    sent = [topic.send(n, group="g", type="a" if n < 3 else "b").id for n in range(5)]

    job = client.admin.job_start("orders", "cancel", conditions={"type": "a"})
    assert client.admin.job_run(job.id).done == 3
    with topic.consumer() as consumer:
        (delivery,) = consumer.receive(5, wait=5)
        assert delivery.id == sent[3]
        delivery.ack()


def test_ids_are_conditions(client: rmq.Client) -> None:
    topic = orders(client, 4)
    with topic.consumer() as consumer:
        (held,) = consumer.receive(1, wait=5)
        ids = [held.id, *(message.id for message in client.admin.peek("orders", 2))]
        for running, done, requested in ((False, 2, 0), (True, 0, 1)):
            job = client.admin.job_start(
                "orders", "cancel", conditions={"ids": ids}, running=running
            )
            job = client.admin.job_run(job.id)
            assert (job.done, job.requested) == (done, requested)


@pytest.mark.parametrize(
    ("verb", "given"),
    [("cancel", {"conditions": {"older_than": 5}}),
     ("cancel", {"conditions": {"filter": "age>1h"}}),
     ("cancel", {"conditions": {"filter": "not (type=a and died<2030-01-01T00:00:00Z)"}}),
     ("cancel", {"to": "other"}), ("redrive", {"running": True}), ("purge", {"running": True})],
)  # fmt: skip
def test_what_a_job_cannot_do_is_refused_and_nothing_is_listed(
    client: rmq.Client, verb: str, given: dict[str, Any]
) -> None:
    orders(client, 1)

    with pytest.raises(rmq.ConfigurationError):
        client.admin.job_start("orders", verb, **given)
    if "to" not in given:
        with pytest.raises(rmq.ConfigurationError):
            client.admin.job_matches("orders", verb, **given)

    assert client.admin.jobs() == []


def test_job_can_be_paused_and_stopped(client: rmq.Client) -> None:
    orders(client, 4)
    job = client.admin.job_start("orders", "cancel")
    assert client.admin.job_pause(job.id)
    assert client.admin.job_run(job.id).state == "paused"
    assert client.admin.job_stop(job.id)
    assert client.admin.job_run(job.id).state == "stopped"
    assert client.admin.stats("orders")["cancelled"] == 0


def test_api_counts_starts_and_wants_the_name_of_the_topic(api: Ask, client: rmq.Client) -> None:
    orders(client, 10)
    wanted = {"verb": "cancel", "filter": "body.customer=7"}

    assert api("/topics/orders/jobs/matches", "POST", wanted).body == {"count": 5}
    assert api("/topics/orders/jobs", "POST", wanted).status == 400
    started = api("/topics/orders/jobs", "POST", wanted | {"confirm": "orders", "running": True})
    assert (started.status, started.body["running"]) == (201, True)

    path = f"/jobs/{started.body['id']}"
    until(lambda: api(path).body["state"] == "done", "the job")
    found = api(path).body
    assert (found["done"], found["requested"], found["verb"]) == (5, 0, "cancel")


def test_console_asks_for_a_filter_counts_and_starts(
    server: Redis, prefix: str, client: rmq.Client
) -> None:
    orders(client, 10)
    with serving(server.url, prefix) as running:
        console: Server = running
        base = console.url + "/console/topics/orders"
        assert 'id="cancel-many"' in fetch(base + "/messages").text
        assert "type=refund" in fetch(base + "/cancel").text
        wrong = fetch(base + "/cancel?filter=age%3E1h")
        assert (wrong.status, "need dead letters" in wrong.text) == (400, True)
        assert "No message matches" in fetch(base + "/cancel?filter=type%3Dx").text

        shown = fetch(base + "/cancel?filter=body.customer%3D7&running=on").text
        assert "Cancel 5 messages of the topic orders" in shown
        assert "rmq cancel orders --filter body.customer=7 --running" in shown
        form = {"csrf": csrf_of(shown), "filter": "body.customer=7", "running": "on"}
        assert fetch(base + "/cancel", form).status == 400
        done = fetch(base + "/cancel", form | {"confirm": "orders", "expected": "5"})

        assert done.status == 303
        url = console.url + done.headers["Location"]
        until(lambda: re.search(r'id="job-state">done<', fetch(url).text), "the job")
        text = fetch(url).text
        assert "Cancel of messages" in text
        assert re.search(r'id="job-done">5 of 5<', text)
    assert client.admin.stats("orders")["cancelled"] == 5
