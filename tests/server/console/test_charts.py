"""Charts: when messages fall due, how late they were taken, and what limits hold back."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import rmq
from rmq.http_framework.charts import Line, line_chart
from rmq.http_framework.figures import lateness_chart, summed
from rmq.kernel.core.history import COUNTERS, LEVELS, Sample
from rmq.server import Server
from tests.server.console.fetching import fetch

BEGAN = datetime(2030, 1, 1, tzinfo=UTC)


def _sample(step: int, p50_s: float | None, p99_s: float | None) -> Sample:
    at = BEGAN + timedelta(seconds=10 * step)
    rates = dict.fromkeys(COUNTERS, 1.0)
    return Sample(at, dict.fromkeys(LEVELS, 1), 0.0, rates, p50_s, p99_s)


def test_lateness_of_several_topics_is_that_of_the_worst() -> None:
    first = [_sample(0, 1.0, 2.0), _sample(1, None, None), _sample(2, None, None)]
    second = [_sample(0, 0.5, 8.0), _sample(1, 0.25, 4.0), _sample(2, None, None)]

    found = summed([first, second])

    assert [(each.late_p50_s, each.late_p99_s) for each in found] == [
        (1.0, 8.0), (0.25, 4.0), (None, None),
    ]  # fmt: skip
    assert [each.counts["due"] for each in found] == [2, 2, 2]


def test_a_chart_of_lateness_is_empty_where_nothing_was_taken() -> None:
    assert lateness_chart([_sample(step, None, None) for step in range(3)]).is_empty
    drawn = lateness_chart([_sample(0, None, None), _sample(1, 0.5, 2.0)])
    assert [name for name, _, _ in drawn.lines] == ["50 %", "99 %"]
    assert drawn.values == [[None, 0.5], [None, 2.0]]


def test_a_value_between_two_that_are_not_known_is_drawn_as_a_dot() -> None:
    times = [BEGAN + timedelta(seconds=10 * step) for step in range(7)]

    drawn = line_chart(times, [Line("n", "blue", [1, 2, None, None, 3, None, None])], "")

    path = drawn.lines[0][2]
    assert re.findall("[MLh]", path) == ["M", "h", "L", "M", "h"]


def test_a_topic_shows_when_its_messages_fall_due(console: Server, client: rmq.Client) -> None:
    topic = client.topic("orders")
    page = console.url + "/console/topics/orders"
    topic.open()
    assert "No message waits for a time" in fetch(page).text
    other = client.topic("other")
    for delay in (30, 600, 700, 800, 30 * 86_400):
        other.send("later", delay=delay)

    shown = fetch(console.url + "/console/topics/other").text

    bars = dict(re.findall(r"<g><title>([^<]+): (\d+)</title>", shown))
    assert bars == {
        "now": "0", "1 min": "1", "5 min": "0", "15 min": "3", "1 h": "0", "6 h": "0", "1 d": "0",
        "7 d": "0", "later": "1",
    }  # fmt: skip


def test_a_topic_says_what_its_limit_for_each_key_holds_back(
    console: Server, client: rmq.Client
) -> None:
    topic = client.topic("orders", limit=rmq.Concurrency(1, key="tenant"))
    url = console.url + "/console/topics/orders"
    for tenant in ("a", "a", "a", "b"):
        topic.send(tenant, headers={"tenant": tenant})

    with topic.consumer() as consumer:
        taken = consumer.receive(1)
        page = fetch(url).text
        consumer.ack(taken)

    assert "concurrency:1:key=tenant</code> holds 2 messages back" in page
    assert "of the first 1000 of each slot" in page
    client.topic("free").open()
    assert "The limit" not in fetch(console.url + "/console/topics/free").text
