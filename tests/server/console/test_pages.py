"""Pages of the console over HTTP: what they answer, that they are safe to show, and who may act."""

from __future__ import annotations

import json
import re
import urllib.request
from urllib.parse import urlencode

import pytest

import rmq
from rmq.server import Server
from tests.server.console import corpus
from tests.server.console.conftest import PAGES, Filled
from tests.server.console.fetching import chosen_in, csrf_of, fetch
from tests.server.running import PATIENCE_S, dead, serving, until
from tests.servers import Server as Redis


@pytest.mark.parametrize("path", PAGES)
def test_a_page_shows_hostile_text_as_text(hostile: Filled, path: str) -> None:
    shown = fetch(hostile.url(path))

    wanted = {
        "nothing-here": 404,
        "topics/orders/dead-letters?filter=age%3Esoon": 400,
        "topics/orders/messages?filter=age%3Esoon": 400,
        "topics/orders/resize?slots=x": 400,
    }
    if "Location" in shown.headers:  # the pages of acts on all letters name their moment
        shown = fetch(hostile.server.url + shown.headers["Location"])
    assert shown.status == wanted.get(path, 200), shown.text
    page = corpus.Page(shown.text)
    assert page.faults == []
    assert len(page.ids) == len(set(page.ids)), "two elements have one id"
    assert "default-src 'none'" in shown.headers["Content-Security-Policy"]
    assert "\u202e" not in shown.text


def test_text_that_is_not_escaped_is_caught() -> None:
    for text in corpus.TEXTS[:4] + corpus.TEXTS[7:12]:
        assert corpus.Page(f"<p title='{text}'>{text}</p>").faults, text


def test_a_filter_is_echoed_as_text(hostile: Filled) -> None:
    for text in corpus.TEXTS:
        query = urlencode({"filter": text, "contains": text, "queue": text, "id": text})
        for path in ("topics/orders/dead-letters", "", "workers", "audit-trail"):
            shown = fetch(f"{hostile.url(path)}?{query}")
            assert shown.status in (200, 400)
            assert corpus.Page(shown.text).faults == [], (path, text)


def test_the_root_leads_a_browser_to_the_console(console: Server) -> None:
    root = fetch(console.url + "/", Accept="text/html,*/*;q=0.8")
    with_slash = fetch(console.url + "/console/")
    for_programs = fetch(console.url + "/", Accept="application/json")

    assert (root.status, root.headers["Location"]) == (307, "/console")
    assert (with_slash.status, with_slash.headers["Location"]) == (307, "/console")
    assert "/console" in json.loads(for_programs.text)["paths"]


def test_a_page_without_change_is_not_sent_again(console: Server, client: rmq.Client) -> None:
    client.topic("quiet").open()
    first = fetch(console.url + "/console/topics/quiet/settings")

    again = fetch(
        console.url + "/console/topics/quiet/settings", If_None_Match=first.headers["ETag"]
    )

    assert (again.status, again.text) == (304, "")
    client.admin.topic_set("quiet", lease=77)
    assert (
        fetch(
            console.url + "/console/topics/quiet/settings", If_None_Match=first.headers["ETag"]
        ).status
        == 200
    )


def test_a_stream_sends_the_page_when_it_changes(console: Server, client: rmq.Client) -> None:
    client.topic("live").open()
    request = urllib.request.Request(
        console.url + "/console/topics/live/messages", headers={"Accept": "text/event-stream"}
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as stream:
        assert stream.headers["Content-Type"].startswith("text/event-stream")
        assert "No message is waiting" in _event(stream, "page")
        assert _event(stream, "same") == ""

        id = str(client.topic("live").send("hello").id)

        assert id in _event(stream, "page")


def test_a_stream_says_that_a_page_can_no_longer_be_read(own_server: Redis, prefix: str) -> None:
    with rmq.Client(own_server.url, prefix=prefix) as client:
        client.topic("live").open()
    with serving(own_server.url, prefix) as running:
        url = running.url + "/console/topics/live/messages"
        request = urllib.request.Request(url, headers={"Accept": "text/event-stream"})
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as stream:
            assert "No message is waiting" in _event(stream, "page")

            own_server.kill()

            assert _event(stream, "failure") == "Redis does not answer"
            own_server.start()
            with rmq.Client(own_server.url, prefix=prefix) as client:
                client.topic("live").send("back")
            assert "back" in _event(stream, "page")


def _event(stream: object, name: str) -> str:
    """Return the text of the next event of a name."""
    event, lines = "", list[str]()
    while True:
        line = stream.readline().decode().rstrip("\r\n")  # type: ignore[attr-defined]
        kind, _, text = line.partition(": ")
        if kind == "event":
            event, lines = text, []
        elif kind.startswith("data"):
            lines.append(text)
        elif line == "" and event == name:
            return "\n".join(lines)


def test_an_act_needs_the_text_of_its_form(console: Server, client: rmq.Client) -> None:
    client.topic("orders").open()
    url = console.url + "/console/topics/orders/pause"
    csrf = csrf_of(fetch(console.url + "/console/topics/orders").text)

    for wrong in ({}, {"csrf": ""}, {"csrf": csrf[:-1]}, {"csrf": csrf + "0"}):
        assert fetch(url, wrong).status == 403
        assert client.admin.settings("orders").paused is None
    for headers in ({"Origin": "http://evil.example"}, {"Sec_Fetch_Site": "cross-site"}):
        assert fetch(url, {"csrf": csrf}, **headers).status == 403
    assert fetch(url + f"?csrf={csrf}").status == 404, "an act by GET"
    assert client.admin.settings("orders").paused is None

    done = fetch(url, {"csrf": csrf, "verb": "receive", "why": "deploy"})

    assert (done.status, done.headers["Location"]) == (303, "/console/topics/orders")
    paused = client.admin.settings("orders").paused
    assert paused is not None
    assert (paused.by, paused.why) == ("local", "deploy")
    assert (
        "Paused"
        in fetch(
            console.url + "/console/topics/orders", Cookie=done.headers["Set-Cookie"].split(";")[0]
        ).text
    )


def test_a_form_that_is_no_form_or_too_large_is_refused(console: Server) -> None:
    url = console.url + "/console/topics/orders/pause"

    assert fetch(url, {"why": "x" * 70_000}).status == 413
    assert fetch(url, {"a": "b"}, Content_Type="application/json").status == 400
    assert fetch(url, {f"f{n}": "" for n in range(2000)}).status == 400


def test_a_topic_is_deleted_only_when_its_name_is_typed(
    console: Server, client: rmq.Client
) -> None:
    client.topic("orders").send(1)
    url = console.url + "/console/topics/orders/delete"
    csrf = csrf_of(fetch(url).text)

    assert fetch(url, {"csrf": csrf, "confirm": "order", "force": "on"}).status == 400
    assert fetch(url, {"csrf": csrf, "confirm": "orders"}).status == 409
    assert client.admin.topics() == ["orders"]
    assert fetch(url, {"csrf": csrf, "confirm": "orders", "force": "on"}).status == 303
    assert client.admin.topics() == []


def test_a_redrive_takes_the_letters_that_were_shown_and_no_later_ones(
    console: Server, client: rmq.Client
) -> None:
    topic = client.topic("orders", max_retries=0, retry="immediate")
    topic.open()
    consumer = topic.consumer()

    def die(error: str) -> None:
        topic.send(error)
        consumer.receive(wait=5)[0].nack(error=error)

    for text in ("timeout a", "refused", "timeout b"):
        die(text)
    until(lambda: _second_has_passed(client), "the next second")
    url = console.url + "/console/topics/orders/dead-letters/redrive"
    asked = fetch(url + "?" + urlencode({"filter": "error contains timeout"}))
    page = fetch(console.url + asked.headers["Location"])
    assert "Redrive 2 letters" in page.text
    found = re.search(r'name="filter" value="([^"]+)"', page.text)
    assert found is not None
    bound = found[1].replace("&lt;", "<").replace("&#34;", '"')
    moment = bound.partition("died<")[2]
    until(lambda: _clock(client) > moment, "a letter that dies later")
    die("timeout c")

    done = fetch(url, {"csrf": csrf_of(page.text), "filter": bound, "expected": "2"})

    assert done.status == 303, done.text
    job = done.headers["Location"].rpartition("/")[2]
    until(lambda: client.admin.job(job).state == "done", "the job")
    left = [message.body for message in client.admin.dead_letters("orders").messages]
    assert sorted(left) == ["refused", "timeout c"]
    assert client.admin.job(job).by == "local"
    assert "100 %" in fetch(f"{console.url}/console/jobs/{job}").text


def test_letters_are_redriven_to_the_topic_that_was_chosen(
    console: Server, client: rmq.Client
) -> None:
    client.topic("refunds").open()
    (id, _) = dead(client, 2)
    url = console.url + "/console/topics/orders/dead-letters/redrive"
    back = fetch(f"{url}?ids={id}").text
    assert '<option value="refunds">' in back
    assert "--to refunds" not in back

    page = fetch(f"{url}?ids={id}&to=refunds").text
    done = fetch(url, chosen_in(back, "redrive", "to", "refunds"))

    assert f"rmq dlq redrive orders --id {id} --to refunds</code>" in page
    assert '<option value="refunds" selected>' in page
    job = done.headers["Location"].rpartition("/")[2]
    assert until(lambda: client.admin.job(job).state == "done", "the job")
    assert client.admin.job(job).to == "refunds"
    assert (client.admin.stats("orders")["dead"], client.admin.stats("refunds")["accepted"]) == (
        1, 1,
    )  # fmt: skip


def test_the_last_choice_of_a_topic_is_the_one_that_counts(
    console: Server, client: rmq.Client
) -> None:
    client.topic("refunds").open()
    (id,) = dead(client, 1)
    url = console.url + "/console/topics/orders/dead-letters/redrive"
    page = fetch(f"{url}?ids={id}&to=refunds").text

    done = fetch(url, chosen_in(page, "redrive", "to", ""))

    job = done.headers["Location"].rpartition("/")[2]
    assert client.admin.job(job).to is None


def test_a_redrive_to_what_is_no_other_topic_is_refused(
    console: Server, client: rmq.Client
) -> None:
    (id,) = dead(client, 1)
    url = console.url + "/console/topics/orders/dead-letters/redrive"
    csrf = csrf_of(fetch(f"{url}?ids={id}").text)

    for to in ("none", "orders", "../x", "<b>"):
        shown = fetch(url + "?" + urlencode({"ids": id, "to": to}))
        sent = fetch(url, {"csrf": csrf, "ids": id, "to": to})

        assert shown.status == 400, to
        assert sent.status in (400, 404), to
    assert client.admin.jobs() == []


def test_a_job_to_another_topic_shows_where_its_letters_go_and_why_some_stayed(
    console: Server, client: rmq.Client
) -> None:
    client.topic("refunds", max_length=1).open()
    topic = client.topic("orders")
    topic.send_many([rmq.Outgoing(n) for n in range(3)])
    with topic.consumer() as consumer:
        consumer.reject(consumer.receive(3), "why")
    job = client.admin.job_start("orders", to="refunds")
    until(lambda: client.admin.job(job.id).state == "done", "the job")

    page = fetch(f"{console.url}/console/jobs/{job.id}").text

    assert re.search(r'<dt>goes to</dt><dd><a href="[^"]*refunds">refunds</a>', page)
    assert "<dt>left: full</dt><dd>2</dd>" in page


def _clock(client: rmq.Client) -> str:
    from datetime import UTC, datetime

    now_ms = client.admin.stats("orders")["now_ms"]
    return datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _second_has_passed(client: rmq.Client) -> bool:
    return client.admin.stats("orders")["now_ms"] % 1000 > 100


def test_a_purge_can_be_undone(console: Server, client: rmq.Client) -> None:
    topic = client.topic("orders", max_retries=0, retry="immediate")
    topic.open()
    for n in range(3):
        topic.send(n)
        topic.consumer().receive(wait=5)[0].nack(error="boom")
    url = console.url + "/console/topics/orders/dead-letters/purge"
    dead = [str(message.id) for message in client.admin.dead_letters("orders").messages]
    page = fetch(url + "?" + urlencode([("ids", id) for id in dead[:2]])).text
    form = {"csrf": csrf_of(page), "ids": " ".join(dead[:2]), "keep": "1 hour"}

    assert fetch(url, form).status == 400, "the name of the topic was not typed"
    done = fetch(url, form | {"confirm": "orders"})

    job = done.headers["Location"].rpartition("/")[2]
    until(lambda: client.admin.job(job).state == "done", "the job")
    assert client.admin.stats("orders")["trash"] == 2
    trash = fetch(console.url + "/console/topics/orders/trash").text
    assert dead[0] in trash
    restored = fetch(url.replace("/purge", "/restore"), {"csrf": csrf_of(page), "ids": dead[0]})
    assert restored.status == 303
    assert client.admin.stats("orders")["dead"] == 2


def test_assets_are_a_fixed_table(console: Server) -> None:
    page = fetch(console.url + "/console").text
    style = re.search(r'href="(/console/static/[0-9a-f]{12}/)console.css"', page)
    assert style is not None
    shown = fetch(console.url + style[1] + "console.css")
    assert (shown.status, shown.headers["Cache-Control"]) == (
        200, "public, max-age=31536000, immutable",
    )  # fmt: skip

    for path in ("../application.py", "..%2fapplication.py", "%2e%2e/__init__.py", "/etc/passwd",
                 "console.css%00", "console.css/", "..%5c..%5cpyproject.toml"):  # fmt: skip
        assert fetch(console.url + style[1] + path).status == 404, path


def test_the_first_page_is_small(console: Server, client: rmq.Client) -> None:
    for n in range(60):
        client.topic(f"topic-{n}").open()
    page = fetch(console.url + "/console").text
    addresses = re.findall(r'(?:href|src)="(/console/static/[^"]+)"', page)
    scripts = ("live", "times", "charts", "keys", "forms", "suggest", "memory")
    base = addresses[0].rpartition("/")[0]
    total = 0
    for path in ["/console", *addresses, *(f"{base}/{name}.js" for name in scripts)]:
        request = urllib.request.Request(console.url + path, headers={"Accept-Encoding": "gzip"})
        with urllib.request.urlopen(request) as reply:
            content = reply.read()
            assert reply.headers["Content-Encoding"] == "gzip", path
            total += len(content)
    assert total < 100_000
