"""rmq dlq export and import: the same messages again, and no line that is bad."""

from __future__ import annotations

import base64
import json
from typing import Any

import rmq
from tests.cli.conftest import ndjson


def purge(run: Any, topic: rmq.Topic) -> None:
    assert run("dlq", "purge", topic.name, "--keep", "0", "--yes").exit_code == 0


def bury(topic: rmq.Topic, count: int = 1) -> None:
    with topic.consumer() as consumer:
        left = count
        while left:
            got = consumer.receive(left, wait=5)
            assert got
            consumer.reject(got, "KeyError: 'x'")
            left -= len(got)


def taken(topic: rmq.Topic) -> dict[str, Any]:
    with topic.consumer() as consumer:
        return {
            str(d.id): (d.body, d.type, dict(d.headers), d.group, d.share_key, d.retries_left)
            for d in consumer.receive(100)
        }


def test_exported_messages_are_imported_as_they_were(run, client, name):
    topic = client.topic(name, groups=rmq.Groups(), max_retries=0, retry="immediate")
    ids = [
        topic.send(
            {"n": 1, "é": None},
            priority=900,
            headers={"tenant": "7"},
            type="a.b",
            group="g",
            share_key="s",
            weight=7,
        ).id,
        client.topic(topic.name, codec="msgpack").send({"raw": b"\xff"}).id,
        client.topic(topic.name, codec="bytes").send(b"\x00\xff").id,
        client.topic(topic.name, codec=rmq.Compressed(above=0)).send({"long": "x" * 2000}).id,
    ]
    bury(topic, 4)

    text = run("dlq", "export", topic.name).stdout
    purge(run, topic)
    first = run("dlq", "import", topic.name, "--json", stdin=text)
    again = run("dlq", "import", topic.name, "--json", stdin=text)
    imported = client.admin.get(name, ids[0])
    got = taken(topic)

    assert {row["id"] for row in ndjson(text)} == {str(id) for id in ids}
    assert json.loads(first.stdout) == {"topic": topic.name, "stored": 4, "duplicate": 0, "bad": 0}
    assert json.loads(again.stdout) == {"topic": topic.name, "stored": 0, "duplicate": 4, "bad": 0}
    assert got[str(ids[0])][:5] == (
        {"n": 1, "é": None}, "a.b", {"tenant": "7"}, "g", "s",
    )  # fmt: skip
    assert (ndjson(text)[0]["weight"], imported.weight) == (7, 7)
    assert [got[str(id)][0] for id in ids[1:]] == [
        {"raw": b"\xff"},
        b"\x00\xff",
        {"long": "x" * 2000},
    ]
    assert client.admin.stats(topic.name)["dead"] == 0


def test_a_line_has_the_body_raw_and_decoded_and_the_error(run, topic):
    topic.send({"order": 7})
    bury(topic)

    (row,) = ndjson(run("dlq", "export", topic.name, "body.order=7").stdout)

    assert json.loads(base64.b64decode(row["body_base64"])) == row["body"] == {"order": 7}
    assert (row["codec"], row["failure"]["error"]) == (1, "KeyError: 'x'")
    assert row["fingerprint"]


def test_bodies_that_were_collected_are_imported_as_one_list(run, topic):
    for n in range(3):
        topic.send(n, merge_key="k", time_range=0.05, merge="collect")
    bury(topic)

    text = run("dlq", "export", topic.name).stdout
    purge(run, topic)
    run("dlq", "import", topic.name, stdin=text)

    assert [body for body, *_ in taken(topic).values()] == [[0, 1, 2]]


def test_what_is_dead_still_is_a_duplicate(run, topic, client):
    topic.send(1)
    bury(topic)

    done = run("dlq", "import", topic.name, stdin=run("dlq", "export", topic.name).stdout)

    assert done.stdout == f"{topic.name}: 0 messages sent, 1 there already\n"
    assert client.admin.stats(topic.name)["dead"] == 1


def test_bad_lines_are_named_and_the_others_are_sent(run, topic, client):
    topic.send({"n": 1})
    bury(topic)
    foreign = str(client.topic(f"{topic.name}-other").send(1).id)
    good = json.loads(run("dlq", "export", topic.name).stdout)
    purge(run, topic)
    bad = [
        "{", "[]", "{}", json.dumps({**good, "body_base64": "*"}),
        json.dumps({**good, "id": "0" * 26}), json.dumps({**good, "priority": 5}),
        json.dumps({**good, "headers": {"a": 1}}), json.dumps({**good, "codec": 9}),
        json.dumps({**good, "codec": True}), json.dumps({**good, "type": "a b"}),
        json.dumps({**good, "bodies_base64": ["*"]}), json.dumps({**good, "id": foreign}),
        "\xff", "[" * 100_000,
    ]  # fmt: skip
    text = "\n".join([*bad, "", json.dumps(good)])

    done = run("dlq", "import", topic.name, stdin=text)
    none = run("dlq", "import", topic.name, stdin="{")

    assert done.exit_code == 4
    named = {line.partition(":")[0] for line in done.stderr.splitlines()[:-1]}
    assert named == {f"line {n}" for n in range(1, len(bad) + 1)}
    assert done.stdout == f"{topic.name}: 1 message sent, 0 there already\n"
    assert client.admin.stats(topic.name)["accepted"] == 2
    assert none.exit_code == 1


def test_an_unknown_topic_is_not_created(run, topic):
    topic.send(1)
    bury(topic)
    text = run("dlq", "export", topic.name).stdout

    assert run("dlq", "import", "nowhere", stdin=text).exit_code == 3
    assert run("dlq", "export", "nowhere").exit_code == 3


def test_a_body_that_is_not_what_its_line_says_is_refused(run, topic):
    topic.send({"order": 7})
    bury(topic)
    line = json.loads(run("dlq", "export", topic.name).stdout)
    purge(run, topic)
    broken = line | {"body_base64": base64.b64encode(b"no JSON").decode()}

    done = run("dlq", "import", topic.name, "--json", stdin=json.dumps(broken))
    kept = run(
        "dlq", "import", topic.name, "--json", stdin=json.dumps(broken | {"unreadable": "x"})
    )

    assert json.loads(done.stdout)["bad"] == 1
    assert "line 1: its body cannot be read: body of 7 bytes is not JSON" in done.stderr
    assert json.loads(kept.stdout)["stored"] == 1  # it was exported as it is


def test_an_export_stands_in_the_audit_trail(run, topic, client):
    assert run("dlq", "export", topic.name).exit_code == 0

    (line,) = [each for each in client.admin.audit_trail() if each.subject == topic.name]
    assert line.what == "dlq_export"
