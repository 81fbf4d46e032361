from __future__ import annotations

import json
import re
import subprocess
import threading
import time

import pytest
from rich.cells import cell_len

import rmq
from rmq.cli_framework import tables
from tests.cli.conftest import bury, ndjson
from tests.cli.program import PATIENCE_S

EVIL = "\x1b[31mred\x1b]0;title\x07 [bold]b[/bold] \x9b2J \u202eturned \x00\x7f\u2028 :smile: \r\n"
HARMFUL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def test_peek_shows_what_waits_in_order_and_takes_nothing(shell, topic):
    low, high = topic.send("low"), topic.send("high", priority=900)
    later = topic.send("later", delay=600)

    done = shell("peek", topic.name)

    lines = done.stdout.splitlines()
    assert lines[0].split() == ["ID", "SLOT", "PRIORITY", "DUE", "TRIES", "BODY"]
    assert [one.split()[0] for one in lines[1:]] == [str(high.id), str(low.id), str(later.id)]
    assert shell("peek", topic.name, "--json").stdout.count("\n") == 3
    assert topic.get(low.id).queue == "store"


@pytest.mark.parametrize("queue", ["waiting", "in flight", "in-flight", "dead"])
def test_peek_accepts_the_everyday_name_of_a_queue(run, topic, queue):
    assert run("peek", topic.name, "--queue", queue).exit_code == 0


def test_peek_of_an_unknown_queue_names_those_there_are(run, topic):
    done = run("peek", topic.name, "--queue", "flight")

    assert (done.exit_code, "store (or waiting)" in done.stderr) == (2, True)


def test_peek_of_other_queues(run, topic):
    bury(topic, "boom")
    topic.send("held")
    consumer = topic.consumer()
    consumer.receive(1)

    held = run("peek", topic.name, "--queue", "prepare")
    dead = run("peek", topic.name, "--queue", "dead", "--json")
    consumer.close()

    assert "LEASED-UNTIL" in held.stdout
    assert '"held"' in held.stdout
    assert ndjson(dead.stdout)[0]["failure"]["error"] == "boom"


def test_messages_of_a_query_are_shown_as_held(run, topic):
    sent = topic.send("taken by a query")
    topic.query("a" * 32, "here").take({})

    shown = run("peek", topic.name, "--queue", "prepare").stdout
    fields = ndjson(run("peek", topic.name, "--queue", "prepare", "--json").stdout)[0]

    assert "held by a query" in shown
    assert "2096" not in shown
    assert (fields["deadline"], fields["held_by_query"]) == (None, True)
    assert "held by a query" in run("get", topic.name, str(sent.id)).stdout


def test_peek_of_nothing_is_no_error(run, topic):
    done = run("peek", topic.name)

    assert (done.exit_code, done.stdout) == (0, "")
    assert "nothing is waiting" in done.stderr
    assert run("peek", topic.name, "--json").output == ""


def test_peek_of_a_slot_that_is_not_there_is_wrong_usage(run, topic):
    assert run("peek", topic.name, "--slot", "1").exit_code == 2
    assert run("peek", topic.name, "--limit", "0").exit_code == 2


@pytest.mark.parametrize("columns", ["20", "40", "80", "200"])
def test_tables_align_and_ids_are_whole_at_every_width(run, topic, columns):
    ids = [
        str(topic.send(body).id)
        for body in ("short", "日本語テキスト" * 30, "😀" * 50, "x" * 500, {"a": ["é"]})
    ]

    lines = run("peek", topic.name, COLUMNS=columns).stdout.splitlines()

    assert [one.split()[0] for one in lines[1:]] == ids
    at = lines[0].index("BODY")
    for one in lines[1:]:
        assert one[at - 1] == " " != one[at]
    narrowest = at + tables.NARROWEST
    assert max(map(cell_len, lines)) <= max(int(columns), narrowest)


def test_a_table_on_a_terminal_fits_it(shell, topic):
    topic.send("x" * 500)

    _, shown = shell.on_terminal("peek", topic.name)

    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert max(map(len, plain.splitlines())) <= 100
    assert "…" in plain


def test_colour_is_for_terminals_without_no_color(shell, topic):
    topic.send(1)

    assert "\x1b[" in shell.on_terminal("peek", topic.name)[1]
    assert "\x1b[" not in shell.on_terminal("peek", topic.name, env={"NO_COLOR": "1"})[1]
    assert "\x1b[" not in shell("peek", topic.name, env={"FORCE_COLOR": "1"}).stdout


@pytest.mark.parametrize("raw", [False, True])
def test_nothing_in_a_message_can_steer_the_terminal(run, client, topic, raw):
    sender = client.topic(topic.name, codec="bytes" if raw else "json")
    body = EVIL.encode() if raw else {EVIL: EVIL}
    for _ in range(2):
        sender.send(body, headers={"h" + EVIL: EVIL}, slot_basis="s")
    with topic.consumer() as consumer:
        (one,) = consumer.receive(1, wait=5)
        one.nack(error=ValueError(EVIL))
    merging = topic.send(1, merge_key="k" + EVIL.strip(), time_range=60).id

    id = ndjson(run("dlq", "ls", topic.name, "--json").stdout)[0]["id"]
    for words in (
        ("peek", topic.name), ("peek", topic.name, "--json"), ("dlq", "ls", topic.name),
        ("dlq", "ls", topic.name, "--json"), ("dlq", "show", topic.name, id),
        ("get", topic.name, id, "--json"), ("get", topic.name, merging),
        ("dlq", "redrive", topic.name, "--error", EVIL.strip()),
        ("dlq", "redrive", topic.name, "--error", "(" + EVIL),
    ):  # fmt: skip
        done = run(*words)

        assert not HARMFUL.search(done.stdout), words
        assert not HARMFUL.search(done.stderr), words
    assert "[bold]b[/bold]" in run("dlq", "show", topic.name, id).stdout
    assert ":smile:" in run("peek", topic.name, COLUMNS="400").stdout


def test_json_keeps_every_character_of_a_body(run, topic):
    topic.send({EVIL: [EVIL, 1.5, None, True, "\U000e0041"]})

    found = json.loads(run("peek", topic.name, "--json").stdout)

    assert found["body"] == {EVIL: [EVIL, 1.5, None, True, "\U000e0041"]}


def test_json_survives_a_terminal_that_knows_ascii_only(shell, topic):
    topic.send("日本😀")

    ascii_only = {"PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    done = shell.from_start("peek", topic.name, "--json", env=ascii_only)

    assert json.loads(done.stdout)["body"] == "日本😀"


def test_bodies_that_json_cannot_carry_are_shown(run, client, topic):
    client.topic(topic.name, codec="msgpack").send({b"\xff": [b"\x00", float("nan"), {1: None}]})
    client.topic(topic.name, codec="bytes").send(b"\xff\x00")

    first, second = ndjson(run("peek", topic.name, "--json").stdout)

    assert first["body"] == {"ff": [{"hex": "00"}, "nan", {"1": None}]}
    assert second["body_hex"] == "ff00"
    assert "0xff00" in run("peek", topic.name).stdout


def test_get_of_what_is_not_there_is_exit_code_3(run, topic, client):
    done = run("get", topic.name, topic.new_id())
    other = client.topic(f"{topic.name}-other")

    assert (done.exit_code, "settled, or never existed" in done.stderr) == (3, True)
    assert run("get", topic.name, other.send(1).id).exit_code == 2


def test_get_shows_a_body_in_full(run, topic):
    id = topic.send({"text": "x" * 5000}, headers={"a": "b"}).id

    shown = run("get", topic.name, id).stdout

    assert "x" * 5000 in shown
    assert re.search(r"^header a +b$", shown, re.MULTILINE)


def test_peek_goes_on_after_a_cursor_to_the_end(run, topic):
    topic.send_many([rmq.Outgoing(n) for n in range(25)])

    first = run("peek", topic.name)
    (after,) = re.findall(r"^the first 10; more: --cursor (\S+)$", first.stderr, re.MULTILINE)
    second = run("peek", topic.name, "--cursor", after, "--json")
    cursors = {one["cursor"] for one in ndjson(second.stdout)}
    third = run("peek", topic.name, "--cursor", *cursors, "--json")
    bad = run("peek", topic.name, "--cursor", "x")

    assert len(first.stdout.splitlines()) == 11
    assert [one["body"] for one in ndjson(second.stdout)] == list(range(10, 20))
    assert [(one["body"], one["cursor"]) for one in ndjson(third.stdout)] == [
        (n, None) for n in range(20, 25)
    ]
    assert "more" not in third.stderr
    assert (bad.exit_code, "is not a cursor" in bad.stderr) == (2, True)
    assert len(ndjson(run("peek", topic.name, "--limit", 5000, "--json").stdout)) == 25


class TestTail:
    def test_it_goes_on_where_another_ended(self, run, topic):
        topic.send_many([rmq.Outgoing(n) for n in range(7)])

        first = run("tail", topic.name, "--cursor", 2, "--limit", 3, "--json")
        shown = run("tail", topic.name, "--cursor", 2, "--limit", 3)
        (after,) = re.findall(r"^to continue: --cursor (\S+)$", shown.stderr, re.MULTILINE)
        second = run("tail", topic.name, "--cursor", after, "--limit", 2, "--json")
        bad = run("tail", topic.name, "--cursor", "1.2", "--limit", 1)

        assert [one["body"] for one in ndjson(first.stdout)] == [2, 3, 4]
        assert ndjson(first.stdout)[-1]["cursor"] == after
        assert [one["body"] for one in ndjson(second.stdout)] == [5, 6]
        assert (bad.exit_code, "is not a cursor" in bad.stderr) == (2, True)
        assert run("tail", topic.name, "--cursor", "1", "--consume").exit_code == 2

    def test_it_shows_new_messages_and_takes_none(self, shell, topic):
        topic.send("old")
        running = shell.start(
            "tail", topic.name, "--json", "--interval", "100ms", "--limit", 3,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

        sent = feed_until_done(topic, running)

        out, _ = running.communicate(timeout=90)
        found = [one["body"] for one in ndjson(out.decode())]
        assert running.returncode == 0
        assert len(found) == 3
        assert found == sent[sent.index(found[0]) :][:3]
        assert "old" not in found

    def test_with_consume_it_receives_and_acks(self, shell, topic, client):
        for n in range(5):
            topic.send(n)

        done = shell("tail", topic.name, "--consume", "--limit", 4, "--json")

        assert [one["body"] for one in ndjson(done.stdout)] == [0, 1, 2, 3]
        counts = client.admin.stats(topic.name)
        assert (counts["settled"], counts["priority"], counts["in_flight"]) == (4, 1, 0)

    def test_lines_for_people_fit_and_are_harmless(self, run, topic):
        topic.send(EVIL + "x" * 500)

        done = run("tail", topic.name, "--consume", "--limit", 1, COLUMNS="100")

        (line,) = done.stdout.splitlines()
        assert len(line) <= 100
        assert not HARMFUL.search(line)


def feed_until_done(topic, running):
    """Send a message every 50 ms until the tail has had enough."""
    sent = []
    until = time.monotonic() + PATIENCE_S
    while running.poll() is None and time.monotonic() < until:
        topic.send(len(sent))
        sent.append(len(sent))
        time.sleep(0.05)
    return sent


def test_types_are_shown_and_filtered(run, topic):
    for n, kind in enumerate(["a", "b", None, "b"]):
        topic.send(n, type=kind)

    table = run("peek", topic.name).stdout.splitlines()
    of_b = run("peek", topic.name, "--type", "b", "--limit", 1, "--json")
    none = run("peek", topic.name, "--type", "c")

    assert table[0].split()[:3] == ["ID", "TYPE", "SLOT"]
    assert [line.split()[1] for line in table[1:]] == ["a", "b", "-", "b"]
    assert [(one["body"], one["type"]) for one in ndjson(of_b.stdout)] == [(1, "b")]
    assert (none.stdout, "nothing of type c is waiting" in none.stderr) == ("", True)
    assert run("peek", topic.name, "--type", "a b").exit_code == 2
    assert re.search(
        r"^type +b$", run("get", topic.name, ndjson(of_b.stdout)[0]["id"]).stdout, re.M
    )


def test_groups_are_shown_and_filtered(run, client, name):
    client.topic(name, groups="order").open()
    for n, group in enumerate("aab"):
        sent = run("send", name, n, "--group", group, "--share-key", "s", "--weight", 2)

    shown = run("peek", name)
    of_a = ndjson(run("peek", name, "--group", "a", "--json").stdout)
    none = run("peek", name, "--group", "c")

    assert sent.exit_code == 0, sent.stderr
    assert [line.split()[-1] for line in shown.stdout.splitlines()] in (
        ["BODY", "0", "2", "1"], ["BODY", "2", "0", "1"],
    )  # fmt: skip
    assert "after its group" in shown.stdout.splitlines()[-1]
    assert "1 message held back by the topic's limit or groups" in shown.stderr
    assert [(m["body"], m["held"], m["share_key"]) for m in of_a] == [
        (0, False, "s"), (1, True, "s"),
    ]  # fmt: skip
    assert re.search(r"^group +a \(held\)$", run("get", name, of_a[1]["id"]).stdout, re.M)
    assert "nothing of group c is waiting" in none.stderr


@pytest.mark.parametrize("option", ["--type", "--group"])
def test_tail_shows_messages_of_one_type_or_group(run, client, name, option):
    topic = client.topic(name, groups="order")
    topic.open()
    is_done = threading.Event()

    def send():
        while not is_done.wait(0.1):  # a tail that has not begun yet shows none of these
            topic.send_many([rmq.Outgoing(n, type=x, group=x) for n, x in enumerate("aba")])

    sending = threading.Thread(target=send)
    sending.start()
    try:
        done = run("tail", topic.name, option, "b", "--limit", 1, "--interval", "50ms")
    finally:
        is_done.set()
        sending.join()
    refused = run("tail", topic.name, option, "b", "--consume")

    (line,) = done.stdout.splitlines()
    assert "  type b  1" in line
    assert (refused.exit_code, f"{option}: --consume" in refused.stderr) == (2, True)


def test_dead_letters_of_a_group(run, client, name):
    topic = client.topic(name, groups="order", max_retries=0)
    topic.send_many([rmq.Outgoing(n, group=x) for n, x in enumerate("ab c")])
    with topic.consumer() as consumer:
        consumer.reject(consumer.receive(4, wait=1), "why")

    listed = ndjson(run("dlq", "ls", name, "--group", "b", "--json").stdout)

    assert [(one["body"], one["group"]) for one in listed] == [(1, "b")]
    assert run("dlq", "ls", name, "--group", "x").exit_code == 3


def test_dead_letters_of_a_type(run, topic):
    for n, kind in enumerate("aba"):
        topic.send(n, type=kind)
    with topic.consumer() as consumer:
        consumer.reject(consumer.receive(3), "why")

    listed = ndjson(run("dlq", "ls", topic.name, "--type", "b", "--json").stdout)
    sent_back = run("dlq", "redrive", topic.name, "--type", "a", "--yes")

    assert [one["body"] for one in listed] == [1]
    assert "2 dead letters sent back" in sent_back.stdout
    assert run("dlq", "ls", topic.name, "--type", "c").exit_code == 3
    assert run("dlq", "purge", topic.name, "--type", "b", "--yes").exit_code == 0
    assert run("dlq", "ls", topic.name, "--reason", "unhandled").exit_code == 3
