"""rmq dlq with filters, groups and pages."""

from __future__ import annotations

import json
import os
import re
import socket
from typing import Any

import pytest

import rmq


def bury(topic: Any, count: int, error: str = "ReadTimeout: no answer in {} s", **headers: str):
    """Make dead letters with bodies {"order": 0, 1, ...}."""
    ids = [str(topic.send({"order": n}, headers=headers).id) for n in range(count)]
    with topic.consumer() as consumer:
        for delivery in consumer.receive(count):
            delivery.reject(error.format(delivery.body["order"]))
    return ids


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_filter_narrows_ls_redrive_and_purge(run, topic, client):
    ids = bury(topic, 6, tenant="7")
    bury(topic, 2, "KeyError: {}", tenant="8")
    wanted = 'error contains "Timeout" and header.tenant=7 and body.order>3'

    listed = lines(run("dlq", "ls", topic.name, wanted, "--json").stdout)
    by_option = lines(run("dlq", "ls", topic.name, "--filter", wanted, "--json").stdout)
    dry = run("dlq", "redrive", topic.name, wanted, "--dry-run")
    redriven = run("dlq", "redrive", topic.name, wanted, "--yes")
    purged = run("dlq", "purge", topic.name, "header.tenant=7", "--type", "none", "--yes")
    purged_some = run("dlq", "purge", topic.name, "header.tenant=7", "--yes")

    assert [row["id"] for row in listed] == [row["id"] for row in by_option] == ids[4:]
    assert f"would send back 2 dead letters (filter {wanted})" in dry.stdout
    assert redriven.stdout == f"{topic.name}: 2 dead letters sent back\n"
    assert purged.exit_code == 3
    assert purged_some.stdout == f"{topic.name}: 4 dead letters deleted\n"
    assert client.admin.stats(topic.name)["dead"] == 2


def test_restore_takes_a_filter_and_options_but_no_age(run, topic, client):
    ids = bury(topic, 4, tenant="7")
    client.admin.purge(topic.name, "dead", keep=3600)

    dry = run("dlq", "restore", topic.name, "body.order>1", "--dry-run")
    restored = run("dlq", "restore", topic.name, "body.order>1", "--id", ids[3])
    none = run("dlq", "restore", topic.name, "--filter", "header.tenant=8")
    refused = run("dlq", "restore", topic.name, "--older-than", "1s")
    rest = run("dlq", "restore", topic.name, "header.tenant=7", "--json")

    assert dry.stdout == (
        f"{topic.name}: would restore 2 dead letters (filter body.order>1); nothing was changed\n"
    )
    assert restored.stdout == f"{topic.name}: 1 dead letter restored\n"
    assert (none.exit_code, refused.exit_code) == (3, 2)
    assert "--older-than" in refused.stderr
    assert json.loads(rest.stdout) == {"topic": topic.name, "matched": 3, "restored": 3}
    assert client.admin.stats(topic.name)["dead"] == 4


def test_a_job_that_purges_shows_how_long_its_letters_are_kept(run, topic, client):
    purge = client.admin.job_start(topic.name, "purge", keep=7200)
    redrive = client.admin.job_start(topic.name)

    assert re.search(r"^kept for +2h$", run("job", "show", purge.id).stdout, re.MULTILINE)
    assert json.loads(run("job", "show", purge.id, "--json").stdout)["keep"] == 7200
    assert "kept for" not in run("job", "show", redrive.id).stdout


def test_a_mistake_in_a_filter_has_a_caret_under_it(run, topic):
    bury(topic, 1)

    failed = run("dlq", "ls", topic.name, "error contains x and age>soon")

    said, shown, caret = failed.stderr.splitlines()
    assert failed.exit_code == 2
    assert said == "rmq: filter: expected a duration: 30s, 5m, 2h, 1d"
    assert shown[caret.index("^") :] == "soon"
    assert run("dlq", "ls", topic.name, "age>1s", "--filter", "age>1s").exit_code == 2


def test_ls_names_the_columns_that_a_narrow_terminal_does_not_show(run, topic):
    bury(topic, 1)

    narrow = run("dlq", "ls", topic.name, COLUMNS="80")
    named = run("dlq", "ls", topic.name, "--columns", "id,body", COLUMNS="80")
    wide = run("dlq", "ls", topic.name, COLUMNS="140")

    assert narrow.stderr == "rmq: not shown at this width: BODY; name them in --columns\n"
    assert "BODY" in named.stdout.splitlines()[0]
    assert (named.stderr, wide.stderr) == ("", "")


def test_ls_goes_on_after_a_cursor(run, topic):
    ids = bury(topic, 7)

    first = run("dlq", "ls", topic.name, "--limit", 3)
    (cursor,) = re.findall(r"more: --cursor (\S+)", first.stderr)
    second = run("dlq", "ls", topic.name, "--limit", 3, "--cursor", cursor, "--json")
    rows = lines(second.stdout)
    third = run("dlq", "ls", topic.name, "--cursor", rows[-1]["cursor"], "--json")
    end = run("dlq", "ls", topic.name, "--cursor", lines(third.stdout)[-1]["cursor"])

    assert [row["id"] for row in rows] == ids[3:6]
    assert [row["id"] for row in lines(third.stdout)] == ids[6:]
    assert (end.exit_code, end.stdout) == (0, "")
    assert run("dlq", "ls", topic.name, "--cursor", "tomorrow").exit_code == 2


def test_ls_and_groups_fit_80_columns_and_show_the_error(run, topic, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    (id,) = bury(topic, 1, "ReadTimeout: no answer from the shop after thirty seconds " + "x" * 80)

    listed = run("dlq", "ls", topic.name).stdout.splitlines()
    groups = run("dlq", "groups", topic.name).stdout.splitlines()

    assert max(map(len, listed + groups)) == 80
    assert listed[0].split() == ["ID", "DEAD-FOR", "REASON", "TRIES", "ERROR"]
    assert listed[1].split()[0] == id
    assert "ReadTimeout: no answ" in listed[1]
    assert groups[0].split() == ["FINGERPRINT", "COUNT", "FIRST", "LAST", "ERROR"]
    assert "rejected: ReadTimeout: no answer" in groups[1]
    by_name = run("dlq", "groups", topic.name, "--columns", "example").stdout.splitlines()
    assert by_name == ["EXAMPLE", id]


def test_groups_count_by_cause(run, topic):
    ids = bury(topic, 5)
    other = bury(topic, 2, "KeyError: '{}'")

    groups = lines(run("dlq", "groups", topic.name, "--json").stdout)
    shown = run("dlq", "show", topic.name, other[0])
    wanted = f"fingerprint={groups[1]['fingerprint']}"
    listed = lines(run("dlq", "ls", topic.name, wanted, "--json").stdout)

    assert [group["count"] for group in groups] == [5, 2]
    assert groups[0]["example"] in ids
    assert [row["id"] for row in listed] == other
    assert groups[1]["fingerprint"] in shown.stdout
    assert {row["fingerprint"] for row in listed} == {groups[1]["fingerprint"]}
    assert run("dlq", "groups", topic.name, "error contains nothing").exit_code == 3


def test_groups_of_a_topic_without_dead_letters_are_no_error(run, topic):
    assert run("dlq", "groups", topic.name).exit_code == 0


@pytest.mark.parametrize("words", [("ls",), ("groups",), ("redrive",), ("purge",)])
def test_every_command_takes_a_filter(run, words):
    assert "[FILTER]" in run("dlq", *words, "--help").stdout


def fail_in_turn(topic: Any, errors: list[BaseException]) -> str:
    """Send a message and nack it with these errors; return its id."""
    id = str(topic.send({"order": 1}).id)
    with topic.consumer() as consumer:
        for error in errors:
            (delivery,) = consumer.receive(1)
            try:
                raise error
            except type(error) as raised:
                delivery.nack(delay=0, error=raised)
    return id


def test_show_lists_every_attempt_in_80_columns(run, client, name, monkeypatch):
    topic = client.topic(name, max_retries=3, retry=rmq.Immediate())
    long = ValueError("x" * 200)
    id = fail_in_turn(topic, [KeyError("first"), long, long, TimeoutError("\x1b[31mred")])
    monkeypatch.setenv("COLUMNS", "80")

    shown = run("dlq", "show", name, id).stdout

    listed = shown[shown.index("\nattempts\n") : shown.index("\nbody\n")].splitlines()[2:]
    assert all(len(line) <= 80 for line in listed)
    worker = f"{socket.gethostname()}:{os.getpid()}"
    heads = [line for line in listed if "#" in line]
    assert [re.sub(r" +", " ", line) for line in heads] == [
        re.sub(r"\d{4}-\S+Z", time, f" #{4 - n} {time} failed {worker}")
        for n, time in enumerate(re.findall(r"\d{4}-\d\d-\d\dT[\d:.]{12}Z", "\n".join(heads)))
    ]
    assert [line.split()[0] for line in listed if "#" not in line] == [
        "TimeoutError:", "ValueError:", "KeyError:",
    ]  # fmt: skip
    assert listed[-1] == "        KeyError: 'first'"
    assert "\x1b" not in shown


def test_show_and_export_have_every_attempt_in_json_over_a_redrive(run, client, name):
    topic = client.topic(name, max_retries=1, retry=rmq.Immediate())
    id = fail_in_turn(topic, [KeyError("a"), ValueError("b")])
    client.admin.redrive(name)
    with topic.consumer() as consumer:
        consumer.receive(1)[0].reject("given up")

    shown = json.loads(run("dlq", "show", name, id, "--json").stdout)
    got = json.loads(run("get", name, id, "--json").stdout)
    (exported,) = lines(run("dlq", "export", name).stdout)

    attempts = shown["attempts"]
    assert [(x["number"], x["reason"], x["error"]) for x in attempts] == [
        (3, "rejected", "given up"), (None, "redriven", ""),
        (2, "failed", "ValueError: b"), (1, "failed", "KeyError: 'a'"),
    ]  # fmt: skip
    assert attempts[0]["at"] == shown["died"]
    assert "raise error" in attempts[2]["traceback"]
    assert got["attempts"] == exported["attempts"] == attempts
    again = run("dlq", "import", name, stdin=json.dumps(exported))
    assert again.stdout == f"{name}: 0 messages sent, 1 there already\n"


def test_show_says_how_many_attempts_were_not_kept(run, client, name):
    topic = client.topic(name, max_retries=16, retry=rmq.Immediate())
    id = fail_in_turn(topic, [ValueError(str(n) * 1500) for n in range(10, 27)])

    shown = run("dlq", "show", name, id).stdout

    oldest = int(re.findall(r"#(\d+) ", shown)[-1])
    assert oldest > 1
    assert f"{oldest - 1} earlier ones: not kept" in shown


def test_edit_sends_a_letter_back_with_another_body_and_header(run, topic, tmp_path):
    first, second, third = bury(topic, 3, tenant="7")
    (tmp_path / "body.json").write_text('{"order": 70}')

    edited = run("dlq", "edit", topic.name, first, '{"order": 7}', "--header", "shop=x", "--json")
    by_file = run("dlq", "edit", topic.name, second, "--file", str(tmp_path / "body.json"))
    wrong = run("dlq", "edit", topic.name, third, "plain text")
    nothing = run("dlq", "edit", topic.name, third)
    again = run("dlq", "edit", topic.name, first, "1")

    assert json.loads(edited.stdout) == {"topic": topic.name, "id": first, "status": "redriven"}
    assert by_file.exit_code == 0, by_file.stderr
    assert (wrong.exit_code, nothing.exit_code, again.exit_code) == (2, 2, 3)
    assert "not JSON" in wrong.stderr
    with topic.consumer() as consumer:
        found = {str(each.id): each for each in consumer.receive(5)}
        assert {id: each.body for id, each in found.items()} == {
            first: {"order": 7}, second: {"order": 70},
        }  # fmt: skip
        assert found[first].headers == {"tenant": "7", "shop": "x"}
        consumer.ack([*found.values()])


def test_causes_name_the_topics(run, topic):
    bury(topic, 2, "Causes of the command: {}")

    shown = run("dlq", "causes", 'error contains "Causes of the command"')
    fields = lines(run("dlq", "causes", 'error contains "of the command"', "--json").stdout)

    assert topic.name in shown.stdout
    assert fields[0]["topics"] == {topic.name: 2}
    assert run("dlq", "causes", "error=never").exit_code == 3
