"""Pages of a topic: leases, queries, the loss audit, settings and resizes."""

from __future__ import annotations

import html
import os
import re
import threading

import pytest

import rmq
from rmq.features.audit.service import Audits
from rmq.features.dead_letters import pages
from rmq.features.topic_admin.service import Resizes
from rmq.features.workers import reporter
from rmq.features.workers.service import Wanted
from rmq.http_framework.service import ServerState
from rmq.http_framework.survey import Survey
from rmq.kernel.core.settings import FIXED
from rmq.kernel.topic import context
from rmq.server import Server
from rmq.server.metrics import ServerMetrics
from tests.server.console.conftest import Scene
from tests.server.console.fetching import csrf_of, fetch
from tests.server.running import until
from tests.servers import Server as Redis

RUN = "ab" * 16


def _texts(page: str, row: str) -> list[str]:
    """The cells of a row of a table, without tags."""
    found = re.search(rf'<tr data-key="{row}">(.*?)</tr>', page, re.S)
    assert found is not None, f"no row {row}"
    cells = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", found[1], re.S)
    return [" ".join(re.sub(r"<[^>]+>", " ", cell).split()) for cell in cells]


# --- leases --------------------------------------------------------------------------------------


def test_leases_name_the_worker_that_runs_a_message(
    console: Server, client: rmq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter, "HEARTBEAT_S", 0.1)
    go = threading.Event()
    topic = client.topic("orders")

    def wait_for_it(body: object) -> None:
        go.wait(60)

    topic.handler(concurrency=1)(wait_for_it)
    id = str(topic.send("body", type="order.paid").id)
    url = console.url + "/console/topics/orders/leases"
    with rmq.Worker(client, heartbeat="thread"):
        page = until(lambda: _page_with(url, "wait_for_it</td>"), "the run of the handler")
        go.set()

    _, slot, lease, ends, holder, handler, runs_for, deliveries, type = _texts(page, id)
    assert (slot, deliveries, type) == ("0", "1", "order.paid")
    assert lease.startswith("shared, ")
    assert ends.endswith("UTC")
    assert "expired" not in ends
    assert holder.endswith(f":{os.getpid()}")
    assert handler.endswith("wait_for_it")
    assert runs_for.endswith((" ms", " s"))
    assert 'href="/console/topics/orders/leases"' in fetch(url.replace("leases", "messages")).text


def _page_with(url: str, text: str) -> str:
    page = fetch(url).text
    return page if text in page else ""


def test_a_run_that_may_hang_is_marked_and_counted(
    console: Server, client: rmq.Client, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter, "HEARTBEAT_S", 0.1)
    go = threading.Event()
    topic = client.topic("orders", lease=1)

    def wait_for_it(body: object) -> None:
        go.wait(60)

    topic.handler(concurrency=1)(wait_for_it)
    topic.send("body")
    with rmq.Worker(client, heartbeat="thread"):
        page = until(lambda: _page_with(console.url + "/console/workers", "may hang"), "the mark")
        survey = Survey(client._transport, prefix)
        survey.run_once()
        wanted = Wanted(client._transport, survey)
        wanted.run_once()
        go.set()

    assert page.index("wait_for_it") < page.index("may hang")
    metrics = ServerMetrics(
        lambda: survey.topics,
        ServerState(),
        wanted=lambda: wanted.by_topic,
        long_runs=lambda: wanted.long_runs,
    )
    assert 'rmq_long_runs{topic="orders"} 1.0' in metrics.text().decode()


def test_leases_of_consumers_and_queries_have_no_worker(
    console: Server, client: rmq.Client
) -> None:
    topic = client.topic("orders")
    (mine, its) = (str(topic.send(n).id) for n in range(2))
    with topic.consumer() as consumer:
        consumer.receive(1)
        topic.query(RUN, "<b>driver</b>").take({})

        page = fetch(console.url + "/console/topics/orders/leases").text

    rows = sorted(_texts(page, id)[2:6:2] for id in (mine, its))
    assert rows == [["of a query", "a query"], ["of its own", "not reported"]]
    assert "2 in flight" in page
    assert "a query of &lt;b&gt;driver&lt;/b&gt;</a>" in page


# --- queries -------------------------------------------------------------------------------------


def test_a_query_is_released_only_by_an_admin_who_types_the_name(scene: Scene) -> None:
    topic = scene.client.topic("orders", retry="immediate")
    for n in range(3):
        topic.send(n)
    topic.query(RUN, "driver").take({}, 2)
    admin, path = scene.cookie("admin"), f"/console/topics/orders/queries/{RUN}/release"
    page = scene.fetch(path, admin)
    form = {"csrf": csrf_of(page.text), "confirm": "orders"}
    queries = scene.fetch("/console/topics/orders/queries", scene.cookie("operator")).text
    assert "Release" not in queries
    assert scene.fetch(path, scene.cookie("operator")).status == 403

    assert scene.fetch(path, admin, form | {"confirm": "order"}).status == 400
    assert scene.fetch(path, admin, form).status == 409, "a driver runs it"
    assert scene.client.admin.stats("orders")["in_flight"] == 2
    done = scene.fetch(path, admin, form | {"force": "on"})

    assert "<dt>messages</dt><dd>2</dd>" in page.text
    assert (done.status, done.headers["Location"]) == (303, "/console/topics/orders/queries")
    assert scene.client.admin.stats("orders")["in_flight"] == 0
    assert "It holds no message" in scene.fetch(path, admin).text


def test_queries_show_how_much_waits_to_be_read(console: Server, client: rmq.Client) -> None:
    topic = client.topic("orders")
    for n in range(5):
        topic.send(n)
    topic.query(RUN, "driver").take({}, 2)

    page = fetch(console.url + "/console/topics/orders/queries").text

    figures = re.findall(r"<dt>([^<]+)</dt>\s*<dd>(?:<a[^>]*>)?([^<]+)", page)
    assert dict(figures) | {"oldest due": ""} == {
        "waiting to be read": "3", "held by queries": "2", "oldest due": "",
    }  # fmt: skip


def test_queries_show_what_their_driver_told_and_blanks_where_it_told_nothing(
    console: Server, client: rmq.Client
) -> None:
    topic = client.topic("orders")
    topic.send(1)
    topic.query("b" * 32, "old").renew({})
    topic.query(RUN, "driver").keep(
        (), {"rows": 1234, "bytes": 56789, "replays": 2, "lag_ms": 1500}
    )

    page = fetch(console.url + "/console/topics/orders/queries").text

    cells = {
        run: dict(re.findall(r'data-label="(\w+)">([^<]*)<', row))
        for run, row in re.findall(r'<tr data-key="(\w+)">(.*?)</tr>', page)
    }
    shown = [cells[RUN][name] for name in ("Rows", "Bytes", "Replays", "Lag", "Commands")]
    assert shown == ["1\u202f234", "56\u202f789", "2", "1.5 s", ""]
    assert [cells["b" * 32][name] for name in ("Rows", "Bytes", "Lag")] == ["", "", ""]


# --- the loss audit ------------------------------------------------------------------------------


@pytest.fixture
def numbered(server: Redis, prefix: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A topic whose three numbered messages somebody has deleted from Redis."""
    monkeypatch.setattr("rmq.features.audit.pages.OLDER_S", 0.0)
    with rmq.Client(server.url, prefix=prefix, interceptors=[rmq.Audit()]) as producer:
        topic = producer.topic("orders")
        for n in range(3):
            topic.send(n)
    server.raw().delete(*(f"{prefix}:{{orders_0}}:{key}" for key in ("store", "records")))
    return "orders"


def test_an_audit_goes_on_after_the_button_and_shows_what_is_missing(
    console: Server, numbered: str
) -> None:
    url = f"{console.url}/console/topics/{numbered}/audit"
    before = fetch(url).text
    assert "None was made" in before
    assert "None was made" in fetch(url).text, "looking at the page begins none"

    done = fetch(url, {"csrf": csrf_of(before)})

    assert (done.status, done.headers["Location"]) == (303, "/console/topics/orders/audit")
    page = until(lambda: _page_with(url, 'id="missing"'), "the end of the audit")
    assert "3 missing</span>" in page
    assert "<dt>numbered messages accepted</dt><dd>3</dd>" in page
    assert re.search(r'data-label="First">1</td><td class="n" data-label="Last">3</td>', page)
    assert "rmq audit orders --forget" in page


@pytest.fixture
def no_audits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that audit nothing by themselves."""
    monkeypatch.setattr(Audits, "run_once", lambda self: 0)


@pytest.mark.usefixtures("no_audits")
def test_the_result_of_the_servers_audits_is_shown(console: Server, numbered: str) -> None:
    url = f"{console.url}/console/topics/{numbered}/audit"
    until(lambda: console.leadership.leads(), "the lead")
    assert "It has no result" in fetch(url).text

    console.audits.missing = {numbered: 7}

    assert "Its last audit found 7 missing" in fetch(url).text


def test_a_viewer_cannot_begin_an_audit(scene: Scene) -> None:
    scene.client.topic("orders").open()
    cookie, path = scene.cookie("viewer"), "/console/topics/orders/audit"
    page = scene.fetch(path, cookie).text

    assert "Audit now" not in page
    csrf = csrf_of(scene.fetch("/console", cookie).text)
    assert scene.fetch(path, cookie, {"csrf": csrf}).status == 403
    assert "None was made" in scene.fetch(path, cookie).text


# --- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "typed"),
    [
        ("lease", "soon"),
        ("max_body", "-1"),
        ("overflow", '"><b>'),
        ("retry", "x"),
        ("timed_priority", "16"),
        ("timed_priority", "last"),
    ],
)
def test_a_wrong_setting_is_explained_beside_it_and_what_was_typed_stays(
    console: Server, client: rmq.Client, name: str, typed: str
) -> None:
    client.topic("orders").open()
    url = console.url + "/console/topics/orders/settings"
    before = client.admin.settings("orders")
    csrf = csrf_of(fetch(url).text)

    shown = fetch(url, {"csrf": csrf, name: typed, "dead_retention": "77m"})

    assert shown.status == 400
    fields = dict(re.findall(r'<input id="set-(\w+)"([^>]*)>', shown.text))
    escaped = typed.replace('"', "&#34;").replace(">", "&gt;").replace("<", "&lt;")
    assert f'value="{escaped}"' in fields[name]
    assert 'value="77m"' in fields["dead_retention"]
    assert f'aria-describedby="mistake-{name}"' in fields[name]
    assert [field for field in fields if "aria-invalid" in fields[field]] == [name]
    assert f'id="mistake-{name}"' in shown.text
    assert client.admin.settings("orders") == before
    assert client.admin.audit_trail()[0].text.endswith("invalid")
    for value in ("150", "first", "200"):  # a number after the word, and the other way round
        typed = {"csrf": csrf, "dead_retention": "77m", "timed_priority": value}
        assert fetch(url, typed).status == 303
        assert str(client.admin.settings("orders").shown()["timed_priority"]) == value
    assert client.admin.settings("orders").dead_retention_ms == 77 * 60_000


def test_slo_is_set_and_marks_the_oldest_message_that_is_later(
    console: Server, client: rmq.Client
) -> None:
    client.topic("orders").send("waits")
    url = console.url + "/console/topics/orders"
    settings = url + "/settings"
    csrf = csrf_of(fetch(settings).text)

    def oldest(page: str) -> str:
        figure = re.search(r"<div[^>]*>(?:(?!</div>).)*oldest due.*?</div>", page, re.S)
        assert figure is not None
        return figure[0]

    assert "warn" not in oldest(fetch(url).text)
    assert fetch(settings, {"csrf": csrf, "slo": "p99<1ms"}).status == 303
    assert client.admin.settings("orders").slo == "p99<1ms"

    page = until(lambda: "warn" in oldest(found := fetch(url).text) and found, "the mark")

    assert "late, slo p99&lt;1ms" in page
    refused = fetch(settings, {"csrf": csrf, "slo": "p99"})
    assert (refused.status, "as p99&lt;2s" in refused.text) == (400, True)


def test_the_page_of_a_topic_shows_its_history(console: Server, client: rmq.Client) -> None:
    topic = client.topic("orders", history=rmq.History("1h", "8MiB"), max_body=1 << 20)
    topic.send("x" * 1_000_000)
    with topic.consumer() as consumer:
        consumer.ack(consumer.receive(wait=1))

    page = until(
        lambda: (
            "1.0 MiB" in (found := fetch(console.url + "/console/topics/orders").text) and found
        ),
        "the figure",
    )
    assert "history of" in page


def test_the_form_shows_durations_with_units_and_why_a_setting_is_fixed(
    console: Server, client: rmq.Client
) -> None:
    client.topic("orders", lease=30).open()

    page = fetch(console.url + "/console/topics/orders/settings").text

    fields = dict(re.findall(r'<input id="set-(\w+)"([^>]*)>', page))
    assert 'value="30s"' in fields["lease"]
    assert 'value="off"' in fields["dead_retention"]
    assert [name for name in FIXED if "readonly" not in fields[name]] == []
    reasons = [why for name, why in FIXED.items() if name != "slots"]  # slots links to the resize
    assert all(f"Cannot be changed: {why}." in page for why in reasons)


def test_saving_one_setting_leaves_those_that_others_changed_meanwhile(
    console: Server, client: rmq.Client
) -> None:
    client.topic("orders", lease=30).open()
    url = console.url + "/console/topics/orders/settings"
    form = _fields(fetch(url).text)
    client.admin.topic_set("orders", lease=300)

    assert fetch(url, form | {"dead_retention": "30d"}).status == 303

    found = client.admin.settings("orders")
    assert (found.lease_ms, found.dead_retention_ms) == (300_000, 30 * 86_400_000)


def test_a_setting_that_two_people_change_is_asked_for_again(
    console: Server, client: rmq.Client
) -> None:
    client.topic("orders", lease=30).open()
    url = console.url + "/console/topics/orders/settings"
    form = _fields(fetch(url).text)
    client.admin.topic_set("orders", lease=300, max_length=50)

    shown = fetch(url, form | {"lease": "60"})

    assert shown.status == 400
    assert "changed from 30s to 5m by another client" in shown.text
    assert client.admin.settings("orders").lease_ms == 300_000
    again = _fields(shown.text)
    assert (again["lease"], again["max_length"]) == ("60", "50")
    assert fetch(url, again).status == 303
    found = client.admin.settings("orders")
    assert (found.lease_ms, found.max_length) == (60_000, 50)
    assert fetch(url, form | {"was": "[1]"}).status == 400
    assert fetch(url, form | {"was": "{"}).status == 400


def _fields(page: str) -> dict[str, str]:
    """The fields of the form of settings, as a browser sends them."""
    fields = re.findall(r'<input [^>]*name="(\w+)" value="([^"]*)"', page)
    return {name: html.unescape(value) for name, value in fields}


# --- resizes -------------------------------------------------------------------------------------


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A survey that looks all the time; its topics are read again each time, not after 30 s."""
    monkeypatch.setattr(context, "FOLLOW_S", 0.0)
    monkeypatch.setattr(Survey, "every_s", 0.1)
    monkeypatch.setattr(Resizes, "every_s", 0.1)


@pytest.mark.usefixtures("looks_often")
def test_a_resize_is_shown_as_it_goes_on_and_finished_by_the_server(
    console: Server, client: rmq.Client
) -> None:
    topic = client.topic("orders", slots=2)
    for n in range(4):
        topic.send(n, slot_basis=str(n))
    url = console.url + "/console/topics/orders/resize"
    asked = fetch(url + "?slots=4").text
    form = {"csrf": csrf_of(asked), "slots": "4"}
    pending = sum(counts["priority"] > 0 for counts in client.admin.stats_by_slot("orders"))
    assert "From 2 to 4 slots" in asked
    assert "just now 4 that wait and 0 in flight" in asked

    assert fetch(url, form).status == 400, "the name of the topic was not typed"
    assert client.admin.settings("orders").slots == 2
    done = fetch(url, form | {"confirm": "orders"})

    assert (done.status, done.headers["Location"]) == (303, "/console/topics/orders/resize")
    page = fetch(url).text
    assert "being resized" in page
    assert f'<dd id="pending">{pending}</dd>' in page
    with topic.consumer() as consumer:
        taken = 0
        while taken < 4:
            taken += len(batch := consumer.receive(10, wait=1))
            consumer.ack(batch)
    page = until(lambda: _page_with(url, "No resize is under way"), "the end of the resize")
    assert "<h2>4 slots" in page


def test_a_number_of_slots_that_does_not_fit_is_explained_and_kept(
    console: Server, client: rmq.Client
) -> None:
    client.topic("orders", slots=2).open()
    url = console.url + "/console/topics/orders/resize"
    csrf = csrf_of(fetch(url + "?slots=4").text)

    for typed in ("x", "0", "3", "9999", "-2"):
        for shown in (
            fetch(f"{url}?slots={typed}"),
            fetch(url, {"csrf": csrf, "slots": typed, "confirm": "orders"}),
        ):
            assert shown.status == 400, typed
            assert f'value="{typed}"' in shown.text
            assert 'id="mistake"' in shown.text, typed
    assert client.admin.settings("orders").slots == 2


def test_a_topic_that_cannot_be_resized_says_so_before_a_number_is_typed(
    console: Server, numbered: str
) -> None:
    shown = fetch(f"{console.url}/console/topics/{numbered}/resize")
    assert (shown.status, "is audited" in shown.text) == (200, True)


# --- messages and dead letters -------------------------------------------------------------------


def test_a_waiting_message_has_its_time_and_is_not_deleted_by_one_click(
    console: Server, client: rmq.Client
) -> None:
    id = client.topic("orders").send("body").id
    assert id.made_at is not None
    page = fetch(f"{console.url}/console/topics/orders/messages").text
    alone = fetch(f"{console.url}/console/topics/orders/messages/{id}").text

    shown = f'datetime="{id.made_at:%Y-%m-%dT%H:%M:%S}'
    assert shown in page
    assert shown in alone
    assert _texts(page, str(id))[3] == "now"
    assert re.search(r'<details id="cancel"><summary>.*?</summary>.*<button class="danger">', alone)
    assert "decoded</a>" in alone
    nav = re.search(r'<nav class="nav".*?</nav>', alone, re.S)
    assert nav is not None
    assert "aria-current" not in nav[0]


def test_a_message_in_flight_is_cancelled_on_request(console: Server, client: rmq.Client) -> None:
    topic = client.topic("orders")
    id = topic.send("body").id
    url = f"{console.url}/console/topics/orders/messages/{id}"
    with topic.consumer() as consumer:
        (delivery,) = consumer.receive(wait=5)
        shown = fetch(url).text
        assert re.search(r'<details id="cancel">.*<button class="danger">', shown, re.S)
        for _ in range(2):
            done = fetch(url + "/cancel", {"csrf": csrf_of(shown)})
            assert (done.status, done.headers["Location"]) == (303, url.removeprefix(console.url))
        delivery.nack()
    assert client.admin.stats("orders")["cancelled"] == 1


def test_the_trash_says_who_purged_and_one_purge_is_undone_from_its_page(
    console: Server, client: rmq.Client
) -> None:
    topic = client.topic("orders", max_retries=0)
    topic.send_many([rmq.Outgoing(n) for n in range(5)])
    with topic.consumer() as consumer:
        consumer.reject(consumer.receive(5), "why")
    client.admin.purge("orders", "dead", filter="body<2", keep=600)
    job = client.admin.job_start("orders", "purge", conditions={"filter": "body<4"}, by="ann")
    client.admin.job_run(job.id)
    at = f"{console.url}/console"

    trash = fetch(f"{at}/topics/orders/trash").text
    page = fetch(f"{at}/jobs/{job.id}").text
    undo = re.search(r'id="undo" href="([^"]+)"', page)
    assert undo is not None
    ask = fetch(console.url + html.unescape(undo[1])).headers["Location"]
    asked = fetch(console.url + ask).text
    form = {"csrf": csrf_of(asked), "all": "on", "job": job.id}
    done = fetch(f"{at}/topics/orders/dead-letters/restore", form)

    assert _texts(trash, job.id)[0] == "ann"
    assert sorted(re.findall(r'data-label="Purged by"><?[^>]*>?(ann|a program)<', trash)) == [
        "a program", "a program", "ann", "ann", "ann",
    ]  # fmt: skip
    assert "Restore 2 letters" in " ".join(re.sub(r"<[^>]+>", "", asked).split())
    assert f'name="job" value="{job.id}"' in asked
    assert done.status == 303
    assert sorted(m.body for m in client.admin.peek("orders", queue="dead")) == [2, 3, 4]


def test_dead_letters_open_by_cause_and_a_rare_cause_is_found_at_once(
    console: Server, client: rmq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "SCAN", 10)
    topic = client.topic("orders", max_retries=0)
    topic.send_many([rmq.Outgoing(n) for n in range(60)])
    with topic.consumer() as consumer:
        batch = consumer.receive(60)
        for delivery in batch:
            delivery.reject("rare" if delivery is batch[-1] else "usual")
    at = f"{console.url}/console/topics/orders"

    assert f'href="{at.removeprefix(console.url)}/dead-letters/groups"' in fetch(at).text
    page = fetch(f"{at}/dead-letters?filter=error+contains+rare").text
    assert str(batch[-1].id) in page


# --- groups --------------------------------------------------------------------------------------


def test_groups_are_listed_stopped_and_purged(console: Server, client: rmq.Client) -> None:
    topic = client.topic("orders", groups=rmq.Groups(on_dead="hold"))
    ids = [str(topic.send(n, group="<b>").id) for n in range(3)]
    url = console.url + "/console/topics/orders/groups"

    _, held, out, _, waits, slot, buttons = _texts(fetch(url).text, "0 &lt;b&gt;")
    assert (held, out, slot, buttons) == ("2", "1", "0", "Pause Purge …")
    assert waits == ids[0]
    message = fetch(f"{console.url}/console/topics/orders/messages/{ids[2]}").text
    assert f"1 held before it, and {ids[0]}, which may be taken" in message

    form, which = {"csrf": csrf_of(fetch(url).text)}, "?group=%3Cb%3E"
    assert fetch(f"{url}/pause{which}", form).status == 303
    assert client.admin.group("orders", "<b>").paused
    assert "the group is paused" in fetch(url).text
    assert fetch(f"{url}/resume{which}", form).status == 303
    with topic.consumer() as consumer:
        consumer.receive()[0].reject("why")
    assert "held by a dead letter" in fetch(url).text
    assert "held by dead letter <a" in fetch(url).text
    assert fetch(f"{url}/release{which}", form).status == 303
    assert not client.admin.group("orders", "<b>").is_held

    assert "2 messages are deleted" in fetch(f"{url}/purge{which}").text
    assert fetch(f"{url}/purge{which}", form).status == 400
    assert fetch(f"{url}/purge{which}", form | {"confirm": "orders"}).status == 303
    assert client.admin.group("orders", "<b>") is None
    assert fetch(f"{url}/explode{which}", form).status == 404


def test_topic_without_groups_says_how_it_gets_them(console: Server, client: rmq.Client) -> None:
    client.topic("orders").open()

    assert (
        "rmq topic create NAME --groups"
        in fetch(console.url + "/console/topics/orders/groups").text
    )
