"""Admin.dead_letters and dead_letter_groups, and redrive and purge with a filter."""

from __future__ import annotations

import re
from typing import Any

import pytest

import rmq
from rmq.errors import InvalidReceipt, InvalidValue, TopicNotFound
from rmq.features.dead_letters import reading
from rmq.kernel.topic import reading as topic_reading
from rmq.kernel.topic.filter import parse
from tests.conftest import Clock
from tests.integration.driven import both_clients
from tests.servers import Server


def bury(api: Any, name: str, count: int, slots: int = 1, error: str = "Boom: {}") -> Any:
    topic = api.topic(name, slots=slots, max_body=1024)
    topic.send_many([rmq.Outgoing({"n": n}) for n in range(count)])
    with topic.consumer() as consumer:
        while got := consumer.receive(200):
            for one in got:
                one.reject(error.format(one.body["n"]))
    return topic


def read(api: Any, name: str, **how: Any) -> list[list[rmq.Message]]:
    pages, after = [], None
    while True:
        page = api.admin.dead_letters(name, cursor=after, **how)
        pages.append(page.messages)
        after = page.cursor
        if after is None:
            return pages


@both_clients
def test_pages_hold_every_dead_letter_once(api: Any, name: str) -> None:
    bury(api, name, 90, slots=4)

    pages = read(api, name, limit=20)

    assert sorted(one.body["n"] for page in pages for one in page) == list(range(90))
    assert [len(page) for page in pages[:4]] == [20, 20, 20, 20]
    slots = [one.slot for page in pages for one in page]
    assert slots == sorted(slots)


def test_pages_go_on_where_dead_letters_were_taken_away(api: Any, name: str) -> None:
    topic = api.topic(name, max_body=1024)
    topic.send_many([rmq.Outgoing({"n": n}) for n in range(30)])
    with topic.consumer() as consumer:  # all of them die in one moment
        consumer.reject(consumer.receive(30), "no")

    first = api.admin.dead_letters(name, limit=10)
    api.admin.redrive(name, ids=[one.id for one in first.messages[5:]])
    rest = api.admin.dead_letters(name, cursor=first.cursor, limit=100)

    assert first.cursor is not None
    seen = {one.id for one in first.messages} | {one.id for one in rest.messages}
    assert (len(seen), len(rest.messages), rest.cursor) == (30, 20, None)


def test_a_page_looks_at_no_more_than_it_may(api: Any, name: str) -> None:
    bury(api, name, 50)

    pages = read(api, name, filter="body.n=49", scan=20)

    assert [len(page) for page in pages] == [0, 0, 1]


def test_large_bodies_are_filtered_too(api: Any, name: str) -> None:
    topic = api.topic(name)
    large = [{"n": n, "fill": "x" * 50_000} for n in range(4)]
    topic.send_many([rmq.Outgoing(body) for body in large])
    with topic.consumer() as consumer:
        consumer.reject(consumer.receive(4), "no")

    (page,) = read(api, name, filter="body.n>=2")
    count = api.admin.redrive(name, filter="body.n>=2 and body.n<3").sent

    assert sorted(one.body["n"] for one in page) == [2, 3]
    assert page[0].body["fill"] == "x" * 50_000
    assert count == 1


@both_clients
def test_redrive_and_purge_take_a_filter_beside_the_other_conditions(api: Any, name: str) -> None:
    bury(api, name, 10)

    assert api.admin.redrive(name, filter="body.n<4", error="boom: 2", dry_run=True).matched == 1
    assert api.admin.redrive(name, filter="body.n<4").sent == 4
    assert api.admin.purge(name, "dead", filter="not body.n=9") == 5
    with pytest.raises(InvalidValue, match="expected"):
        api.admin.purge(name, "dead", filter="n=9")
    assert api.admin.stats(name)["dead"] == 1


@both_clients
def test_groups_have_a_count_an_example_and_times(api: Any, name: str) -> None:
    bury(api, name, 6, slots=2)
    bury(api, name, 3, slots=2, error="Other: '{}'")

    found = api.admin.dead_letter_groups(name)
    some = api.admin.dead_letter_groups(name, filter="error contains Other and body.n>0")

    assert [(group.count, group.reason) for group in found.groups] == [
        (6, "rejected"), (3, "rejected"),
    ]  # fmt: skip
    assert (found.total, found.other) == (9, 0)
    first = found.groups[0]
    assert first.first <= first.last
    assert api.admin.get(name, first.example).failure.error == first.error
    assert [group.count for group in some.groups] == [2]


def test_groups_beyond_the_limit_are_counted_together(
    api: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "GROUPS_MAX", 2)
    for word in ("alpha", "beta", "gamma", "delta"):
        bury(api, name, 2, error=f"Error: {word}")

    found = api.admin.dead_letter_groups(name)

    assert (len(found.groups), found.other, found.total) == (2, 4, 8)


def test_calls_are_small_where_dead_letters_are_large(
    api: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bury(api, name, 60)
    monkeypatch.setattr(topic_reading, "CALL_BYTES", 10)
    asked: list[int] = []
    next_page = topic_reading.next_page

    def noted(*args: Any) -> Any:
        asked.append(args[5])
        return next_page(*args)

    monkeypatch.setattr(topic_reading, "next_page", noted)
    pages = read(api, name, limit=1000)

    assert len(pages[0]) == 60
    assert asked[:2] == [topic_reading.FIRST_CALL, 1]


def test_the_program_of_the_page_runs(
    client: rmq.Client, name: str, request: pytest.FixtureRequest, capsys: Any,
    server: Server, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("RMQ_URL", server.url)
    page = (request.config.rootpath / "docs" / "dead-letters.md").read_text()
    programs = re.findall(r"```python\n(.+?)```", page, re.DOTALL)
    (program,) = [each for each in programs if "dead_letter_groups" in each]
    bury(client, name, 3, error="ReadTimeout: timeout of {} s")

    names: dict[str, Any] = {}
    exec(program.replace("orders", name), names)
    names["client"].close()

    out = capsys.readouterr().out.splitlines()
    assert len(out) == 4
    assert " 3 ReadTimeout: timeout of " in out[0]


def test_a_job_takes_a_filter_on_large_bodies(client: rmq.Client, name: str) -> None:
    topic = client.topic(name)
    topic.send_many([rmq.Outgoing({"n": n, "fill": "x" * 50_000}) for n in range(4)])
    with topic.consumer() as consumer:
        consumer.reject(consumer.receive(4), "no")

    conditions = {"filter": parse("body.n>=2")}
    job = client.admin.job_start(name, "redrive", conditions=conditions)
    client.admin.job_run(job.id)

    assert client.admin.job(job.id).done == 2
    assert client.admin.job(job.id).conditions == {"filter": "body.n>=2"}


@pytest.mark.parametrize("after", ["", "x", "12-", "-1-x", "1790000000000-nonsense"])
def test_a_cursor_that_no_page_gave_is_refused(api: Any, name: str, after: str) -> None:
    bury(api, name, 1)

    with pytest.raises((InvalidValue, InvalidReceipt)):
        api.admin.dead_letters(name, cursor=after)


def test_a_topic_that_does_not_exist_has_no_pages_and_no_groups(api: Any, name: str) -> None:
    with pytest.raises(TopicNotFound):
        api.admin.dead_letters(name)
    with pytest.raises(TopicNotFound):
        api.admin.dead_letter_groups(name)


@both_clients
def test_what_one_purge_has_put_into_the_trash_is_restored_alone(
    api: Any, name: str, clock: Clock
) -> None:
    bury(api, name, 6)
    clock.advance(1)
    assert api.admin.purge(name, "dead", filter="body.n<2") == 2  # somebody else's
    clock.advance(1)
    job = api.admin.job_start(name, "purge", conditions={"filter": "body.n<4"})
    api.admin.job_run(job.id)
    clock.advance(1)
    assert api.admin.purge(name, "dead", filter="body.n=4") == 1

    assert api.admin.restore(name, job=job.id, dry_run=True) == 2
    assert api.admin.restore(name, job=job.id) == 2
    assert sorted(m.body["n"] for m in api.admin.peek(name, queue="dead")) == [2, 3, 5]
    assert sorted(m.body["n"] for m in api.admin.peek(name, queue="trash")) == [0, 1, 4]
    redrive = api.admin.job_start(name, "redrive")
    with pytest.raises(rmq.InvalidValue, match="is a redrive, which cannot be undone"):
        api.admin.restore(name, job=redrive.id)
    with pytest.raises(rmq.JobNotFound):
        api.admin.restore(name, job=f"{name}.00000000")


@both_clients
def test_causes_of_all_topics_are_counted_with_their_topics(api: Any, name: str) -> None:
    first, second = f"{name}-a", f"{name}-b"
    bury(api, first, 3, error="Causes: {}")
    bury(api, first, 1, error="Causes: disk")
    bury(api, second, 2, slots=2, error="Causes: {}")

    found = api.admin.dead_letter_causes(filter='error contains "Causes"')
    short = api.admin.dead_letter_causes(scan=1)

    ours = [
        {topic: n for topic, n in group.topics.items() if topic in (first, second)}
        for group in found.groups
    ]
    assert [each for each in ours if each] == [{first: 3, second: 2}, {first: 1}]
    assert found.total == sum(group.count for group in found.groups)
    assert found.unread == 0
    assert short.total > 0
    assert short.unread > 0
