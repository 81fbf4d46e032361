"""The page of a message: how each attempt failed, and who is shown what of it."""

from __future__ import annotations

import re
from urllib.parse import urlencode

import pytest

import rmq
from rmq.features.messages import pages as messages_pages
from rmq.http_framework.render import NOTHING
from rmq.server import Server
from tests.server.console.conftest import Scene
from tests.server.console.fetching import csrf_of, fetch

DASH = NOTHING  # of a row that is no attempt


def _fail(topic: rmq.Topic, text: str, times: int) -> None:
    """Let a message fail so often, with one traceback for all errors of this text."""
    with topic.consumer() as consumer:
        for _ in range(times):
            (delivery,) = consumer.receive(wait=5)
            try:
                raise ValueError(text)
            except ValueError as error:
                delivery.nack(error=error)


def _attempts(page: str) -> list[list[str]]:
    """Number, reason and error of each attempt of a page, as text without tags."""
    rows = re.findall(r'<tr data-key="\d+">(.*?)</tr>', page, re.S)
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S) for row in rows]
    return [[re.sub(r"<[^>]+>", " ", cell).strip() for cell in each] for each in cells]


def test_all_attempts_of_a_message_are_shown_the_newest_first(
    console: Server, client: rmq.Client
) -> None:
    topic = client.topic("orders", max_retries=2, retry="immediate")
    id = topic.send("body").id
    _fail(topic, "the cause", 1)
    _fail(topic, "<b>connection</b> refused", 2)
    client.admin.redrive("orders")
    _fail(topic, "after the redrive", 1)

    page = fetch(f"{console.url}/console/topics/orders/messages/{id}").text

    rows = _attempts(page)
    assert [(number, reason) for number, _, reason, _, _ in rows] == [
        ("#4", "failed"), (DASH, "redriven"), ("#3", "failed"), ("#2", "failed"), ("#1", "failed"),
    ]  # fmt: skip
    errors = [error for *_, error in rows]
    assert errors[0].startswith("ValueError: after the redrive")
    assert errors[2].startswith("ValueError: &lt;b&gt;connection&lt;/b&gt; refused")
    assert errors[3] == "the same as above"
    assert errors[4].startswith("ValueError: the cause")
    assert ["raise ValueError(text)" in error for error in errors] == [
        True, False, True, False, True,
    ]  # fmt: skip
    assert all(":" in worker for number, _, _, worker, _ in rows if number != DASH)
    assert "not kept" not in page


def test_a_waiting_message_shows_how_it_failed_and_what_was_not_kept(
    console: Server, client: rmq.Client
) -> None:
    topic = client.topic("orders", max_retries=16, retry="immediate")
    id = topic.send("body").id
    for _ in range(3):
        _fail(topic, "again", 16 + 1)
        client.admin.redrive("orders")

    page = fetch(f"{console.url}/console/topics/orders/messages/{id}").text

    rows = _attempts(page)
    kept = [int(number[1:]) for number, *_ in rows if number != DASH]
    assert rows[0][2] == "redriven"
    assert kept[0] == 51
    assert kept[-1] > 1
    assert f"{kept[-1] - 1} earlier" in page


def test_a_viewer_sees_the_errors_of_attempts_and_no_tracebacks(scene: Scene) -> None:
    topic = scene.client.topic("orders", max_retries=5, retry="immediate")
    id = topic.send("body").id
    _fail(topic, "the cause", 1)
    _fail(topic, "refused", 1)
    path = f"/console/topics/orders/messages/{id}"

    as_viewer = scene.fetch(path, scene.cookie("viewer")).text
    as_operator = scene.fetch(path, scene.cookie("operator")).text

    for text in ("ValueError: the cause", "ValueError: refused"):
        assert text in as_viewer
    assert "Traceback" not in as_viewer
    assert as_operator.count("raise ValueError(text)") == 2


def test_the_group_of_a_message_is_shown_and_that_it_is_held(
    console: Server, client: rmq.Client
) -> None:
    topic = client.topic("orders", groups=rmq.Groups())
    ids = [topic.send(n, group="a <b>").id for n in range(2)]

    first, held = (fetch(f"{console.url}/console/topics/orders/messages/{id}").text for id in ids)
    listed = fetch(f"{console.url}/console/topics/orders/messages?queue=store").text

    assert all("<dt>group</dt><dd>a &lt;b&gt;</dd>" in page for page in (first, held))
    assert ["<dt>waits for</dt>" in page for page in (first, held)] == [False, True]
    assert listed.count("group a &lt;b&gt;") == 2
    assert listed.count("after its group") == 1


def test_a_dead_letter_is_edited_in_a_form_and_redriven(
    console: Server, client: rmq.Client
) -> None:
    topic = client.topic("edited", max_retries=0)
    id = str(topic.send({"n": 1, "text": "x\u202ey"}, headers={"tenant": "7"}).id)
    with topic.consumer() as consumer:
        consumer.receive(1, wait=5)[0].reject("KeyError: 'vat'")
    url = f"{console.url}/console/topics/edited/dead-letters/edit/{id}"
    page = fetch(url)
    form = {"csrf": csrf_of(page.text), "headers": "tenant: 8\r\nshop: a: b"}

    assert f'href="/console/topics/edited/dead-letters/edit/{id}"' in (
        fetch(f"{console.url}/console/topics/edited/messages/{id}").text
    )
    assert "x\\u202ey" in page.text
    assert "tenant: 7" in page.text
    wrong = fetch(url, form | {"body": '{"n": '})
    assert (wrong.status, "{&#34;n&#34;: " in wrong.text) == (400, True)
    assert client.admin.stats("edited")["dead"] == 1
    done = fetch(url, form | {"body": '{"n": 2}'})

    assert done.status == 303, done.text
    with topic.consumer() as consumer:
        (delivery,) = consumer.receive(1, wait=5)
        assert delivery.body == {"n": 2}
        assert delivery.headers == {"tenant": "8", "shop": "a: b"}
        delivery.ack()
    line = client.admin.audit_trail(limit=1)[0]
    assert (line.what, line.subject) == ("edit", "edited")
    assert '"n": 2' not in line.text
    assert fetch(url).status == 404


def test_waiting_messages_are_searched_with_a_filter(
    console: Server, client: rmq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = client.topic("searched")
    sent = topic.send_many([rmq.Outgoing({"to": f"person {n}"}) for n in range(30)])
    url = console.url + "/console/topics/searched/messages?"

    one = fetch(url + urlencode({"filter": 'body contains "person 7"'}))
    none = fetch(url + urlencode({"filter": "type=letter"}))
    wrong = fetch(url + urlencode({"filter": "colour=red"}))
    monkeypatch.setattr(messages_pages, "SCAN", 10)
    monkeypatch.setattr(messages_pages, "SEARCH_S", 0.0)
    part = fetch(url + urlencode({"filter": 'body contains "person 27"'}))

    assert str(sent[7].id) in one.text
    assert str(sent[8].id) not in one.text
    assert "rmq peek searched &#39;body contains" in one.text
    assert "No such message is waiting" in none.text
    assert (wrong.status, "expected a field" in wrong.text) == (400, True)
    assert "among the first 10 messages; the search continues on the next page" in part.text
    assert "cursor=" in part.text
