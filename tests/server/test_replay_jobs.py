"""Replays that `rmq server` runs: started over HTTP, and shown in the console."""

from __future__ import annotations

import pytest

import rmq
from tests.integration.test_replay import acked, received
from tests.server.conftest import Ask
from tests.server.console.fetching import fetch
from tests.server.running import serving, until
from tests.servers import Server as Redis


def test_a_replay_over_http_is_run_by_the_server(api: Ask, client: rmq.Client) -> None:
    topic = acked(client, "orders", range(10))
    wanted = {"verb": "replay", "filter": "body>=4", "since": "2020-01-01T00:00:00Z"}

    assert api("/topics/orders/jobs/matches", "POST", wanted).body == {"count": 6}
    started = api("/topics/orders/jobs", "POST", wanted)
    assert (started.status, started.body["lost_to"]) == (201, None)
    assert started.body["conditions"]["since"].startswith("2020-01-01T00:00:00")
    path = f"/jobs/{started.body['id']}"
    until(lambda: api(path).body["state"] == "done", "the job")
    assert api(path).body["done"] == 6
    assert sorted(d.body for d in received(topic, 6)) == list(range(4, 10))


@pytest.mark.parametrize(
    "wrong", [{"ids": []}, {"filter": "error=x"}, {"since": "2020-01-01T00:00:00"}], ids=str
)
def test_wrong_conditions_are_refused(api: Ask, client: rmq.Client, wrong: object) -> None:
    acked(client, "orders", range(2))
    given = {"verb": "replay"} | wrong  # type: ignore[operator]

    assert api("/topics/orders/jobs", "POST", given).status == 400


def test_the_page_of_a_job_says_what_it_sends(
    server: Redis, prefix: str, client: rmq.Client
) -> None:
    acked(client, "orders", range(3))
    job = client.admin.job_start("orders", "replay", expected=3)
    with serving(server.url, prefix) as running:
        url = f"{running.url}/console/jobs/{job.id}"
        until(lambda: 'id="job-state">done<' in fetch(url).text, "the job")
        shown = fetch(url).text

    assert "Replay of acked messages" in shown
    assert "3 of 3" in shown
    assert "rmq-" not in shown.partition("Last messages")[2]
