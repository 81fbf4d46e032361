from __future__ import annotations

import json
import re
import signal
import subprocess

import pytest

import rmq
from tests.cli.conftest import bury, ndjson
from tests.patience import wait_for


def statuses(done):
    return [one["status"] for one in json.loads(done.stdout)]


def test_commands_that_change_something_stand_in_the_audit_trail(run, topic, client):
    id = topic.send(1).id
    assert run("cancel", topic.name, id).exit_code == 0
    topic.send(2)
    assert run("purge", topic.name, "--dry-run").exit_code == 0
    assert run("purge", topic.name, stdin="no\n").exit_code == 6
    assert run("purge", topic.name, "--yes").exit_code == 0
    with topic.consumer() as consumer:
        topic.send(3)
        consumer.receive(1, wait=5)[0].reject("why")
    assert run("dlq", "purge", topic.name, "reason=rejected", "--yes").exit_code == 0
    assert run("topic", "set", topic.name, "--lease", "1m").exit_code == 0
    assert run("topic", "show", topic.name).exit_code == 0
    assert run("audit", topic.name).exit_code == 0
    assert run("topic", "delete", topic.name, "--yes", "--force").exit_code == 0

    lines = [line for line in client.admin.audit_trail() if line.subject == topic.name]

    assert [line.what for line in reversed(lines)] == [
        "cancel", "purge", "dlq_purge", "topic_set", "topic_delete",
    ]  # fmt: skip
    assert all("@" in line.by for line in lines)
    assert "filter_text=reason=rejected" in lines[2].text
    assert lines[2].text.endswith(": done")


class TestCancelByFilter:
    def test_matching_messages_are_counted_and_cancelled_by_a_job(self, run, topic, client):
        for n in range(6):
            topic.send({"n": n % 2})
        words = ("cancel", topic.name, "--filter", "body.n=1")

        looked = run(*words, "--dry-run", "--json")
        assert json.loads(looked.stdout) == {"topic": topic.name, "dry_run": True, "matched": 3}
        refused = run(*words, stdin="no\n")
        assert (refused.exit_code, "--yes" in refused.stderr) == (6, True)
        assert client.admin.stats(topic.name)["cancelled"] == 0
        done = run(*words, "--yes", "--json")

        shown = json.loads(done.stdout)
        job = client.admin.job(shown.pop("job"))
        assert shown == {
            "topic": topic.name, "dry_run": False, "matched": 3, "cancelled": 3, "requested": 0,
            "gone": 0, "refused": {},
        }  # fmt: skip
        assert (done.exit_code, job.verb, job.expected) == (0, "cancel", 3)
        assert "waiting messages of" in run("job", "show", job.id).stdout
        assert run(*words).exit_code == 3

    def test_messages_in_flight_get_a_request(self, run, topic, client):
        topic.send_many([rmq.Outgoing(n) for n in range(2)])
        with topic.consumer() as consumer:
            (delivery,) = consumer.receive(1, wait=5)
            words = ("cancel", topic.name, "--filter", "attempts<5", "--running", "--yes")
            done = run(*words)
            assert "1 message cancelled, 1 request stored for messages in flight" in done.stdout
            assert done.exit_code == 0
            assert run(*words).exit_code == 3
            delivery.nack()
        assert client.admin.stats(topic.name)["cancelled"] == 2

    def test_job_can_be_left_to_a_server(self, run, topic, client):
        topic.send(1)
        done = run("cancel", topic.name, "--filter", "attempts<5", "--detach", "--yes")

        assert done.stdout.strip() == client.admin.jobs(topic.name)[0].id
        assert client.admin.stats(topic.name)["cancelled"] == 0

    @pytest.mark.parametrize(
        "words",
        [
            (),
            ("--running",),
            ("--dry-run", "ID"),
            ("--filter", "type=a", "ID"),
            ("ID", "--rate", "5"),
        ],
    )
    def test_ids_or_a_filter_are_needed(self, run, topic, words):
        id = str(topic.send(1).id)
        done = run("cancel", topic.name, *(id if word == "ID" else word for word in words))
        assert done.exit_code == 2

    def test_wrong_filter_changes_nothing(self, run, topic, client):
        topic.send(1)
        for wrong in ("", "typ=a", "age>1h", "not died<2030-01-01T00:00:00Z"):
            assert run("cancel", topic.name, "--filter", wrong, "--yes").exit_code == 2
        assert client.admin.stats(topic.name)["cancelled"] == 0


class TestWaiting:
    def test_cancel_tells_of_each_and_the_exit_code_of_all(self, run, topic):
        first, second = topic.send(1).id, topic.send(2).id
        gone = topic.new_id()

        assert run("cancel", topic.name, first).exit_code == 0
        some = run("cancel", topic.name, first, second, "--json")
        assert (some.exit_code, statuses(some)) == (4, ["gone", "cancelled"])
        none = run("cancel", topic.name, gone)
        assert (none.exit_code, "settled or unknown" in none.stdout) == (3, True)

    def test_cancel_of_a_running_message_is_asked_for(self, run, topic, client):
        running = topic.send(1).id
        with topic.consumer() as consumer:
            (delivery,) = consumer.receive(wait=5)
            waiting = topic.send(2).id
            plain = run("cancel", topic.name, running)
            assert (plain.exit_code, "a consumer has received it" in plain.stdout) == (3, True)
            done = run("cancel", topic.name, running, waiting, "--running", "--json")
            assert (done.exit_code, statuses(done)) == (0, ["requested", "cancelled"])
            again = run("cancel", topic.name, running, "--running")
            assert (again.exit_code, "requested before" in again.stdout) == (3, True)
            delivery.nack()
        assert client.admin.stats(topic.name)["cancelled"] == 2

    def test_ids_come_from_stdin(self, run, topic, client):
        for n in range(3):
            topic.send(n)
        ids = "\n".join(one["id"] for one in ndjson(run("peek", topic.name, "--json").stdout))

        assert run("cancel", topic.name, "-", stdin=ids).exit_code == 0

        assert client.admin.stats(topic.name)["cancelled"] == 3

    def test_reschedule_and_priority(self, run, topic):
        id = topic.send(1).id

        assert statuses(run("priority", topic.name, id, "--to", 900, "--json")) == ["changed"]
        assert statuses(run("priority", topic.name, id, "--to", 900, "--json")) == ["unchanged"]
        assert topic.get(id).priority == 900
        assert run("reschedule", topic.name, id, "--delay", "1h").exit_code == 0
        assert topic.get(id).due is not None
        assert run("reschedule", topic.name, id, "--at", "2001-01-01T00:00Z").exit_code == 2

    def test_a_message_in_flight_is_not_touched(self, run, topic):
        id = topic.send(1).id
        with topic.consumer() as consumer:
            consumer.receive(1)

            for words in (("cancel",), ("reschedule", "--delay", "1s"), ("priority", "--to", 20)):
                done = run(words[0], topic.name, id, *words[1:], "--json")
                assert (done.exit_code, statuses(done)) == (3, ["in_flight"])

    def test_an_id_of_another_topic_after_good_ones_is_partly_done(self, run, topic, client):
        other = client.topic(f"{topic.name}-other").send(1).id
        mine = topic.send(1).id

        done = run("cancel", topic.name, mine, other, "--json")

        assert (done.exit_code, statuses(done)) == (4, ["cancelled"])
        assert "stopped after 1 of 2" in json.loads(done.stderr)["error"]["message"]


class TestConfirmation:
    @pytest.mark.parametrize("words", [("purge",), ("dlq", "purge"), ("dlq", "redrive")])
    def test_nobody_to_ask_is_exit_code_6_and_nothing_done(self, run, topic, client, words):
        bury(topic, "boom")
        topic.send(1)
        before = client.admin.stats(topic.name)

        done = run(*words, topic.name, stdin=topic.name + "\n")

        assert done.exit_code == 6
        assert "--yes" in done.stderr
        after = client.admin.stats(topic.name)
        assert (after["dead"], after["priority"]) == (before["dead"], before["priority"]) == (1, 1)

    def test_another_name_typed_is_refused(self, shell, topic, client):
        topic.send(1)

        code, shown = shell.on_terminal("purge", topic.name, typed="other\n")

        assert code == 6
        assert "nothing was done" in shown
        assert client.admin.stats(topic.name)["priority"] == 1

    def test_the_name_typed_goes_on(self, shell, topic, client):
        topic.send(1)
        topic.send(2, delay=600)

        code, shown = shell.on_terminal("purge", topic.name, typed=topic.name + "\n")

        assert code == 0
        assert "delete 2 waiting messages" in shown
        counts = client.admin.stats(topic.name)
        assert (counts["priority"], counts["later"], counts["purged"]) == (0, 0, 2)

    def test_end_of_input_is_refused(self, shell, topic):
        topic.send(1)

        assert shell.on_terminal("purge", topic.name, typed="\x04")[0] == 6


class TestPurge:
    def test_dry_run_then_yes(self, run, topic, client):
        for n in range(3):
            topic.send(n)

        dry = json.loads(run("purge", topic.name, "--dry-run", "--json").stdout)
        assert dry == {"topic": topic.name, "dry_run": True, "matched": 3}
        done = json.loads(run("purge", topic.name, "--yes", "--json").stdout)
        assert (done["matched"], done["purged"]) == (3, 3)
        assert run("purge", topic.name, "--yes").exit_code == 3
        assert client.admin.stats(topic.name)["purged"] == 3


class TestDeadLetters:
    def test_ls_and_show(self, run, topic):
        first, second = bury(topic, "boom one", "other two")

        lines = run("dlq", "ls", topic.name).stdout.splitlines()
        assert lines[0].split() == ["ID", "DEAD-FOR", "REASON", "TRIES", "ERROR", "BODY"]
        assert [one.split()[0] for one in lines[1:]] == [first, second]
        only = ndjson(run("dlq", "ls", topic.name, "--error", "other", "--json").stdout)
        assert [one["id"] for one in only] == [second]
        by_id = ndjson(run("dlq", "ls", topic.name, "--id", first, "--json").stdout)
        assert [one["id"] for one in by_id] == [first]
        assert run("dlq", "ls", topic.name, "--older-than", "1h").exit_code == 3
        assert run("dlq", "ls", topic.name, "--reason", "expired").exit_code == 3
        assert len(run("dlq", "ls", topic.name, "--limit", 1).stdout.splitlines()) == 2
        assert re.search(r"^error +boom one$", run("dlq", "show", topic.name, first).stdout, re.M)
        assert run("dlq", "show", topic.name, topic.send(1).id).exit_code == 3

    def test_ls_shows_how_long_ago_each_message_died(self, run, topic):
        bury(topic, "boom")

        row = run("dlq", "ls", topic.name).stdout.splitlines()[1]

        assert re.fullmatch(r"\d+ms|\d+\.\ds", row.split()[1])

    def test_ls_looks_further_until_it_has_enough(self, run, topic, monkeypatch):
        ids = bury(topic, *(f"boom {n}" for n in range(10)))
        monkeypatch.setattr("rmq.kernel.topic.reading.FIRST_CALL", 2)
        monkeypatch.setattr("rmq.kernel.topic.reading.CALL_MAX", 3)

        def found(*words):
            return [
                one["id"] for one in ndjson(run("dlq", "ls", topic.name, *words, "--json").stdout)
            ]

        assert found("--error", "boom") == ids
        assert found("--error", "boom 7") == [ids[7]]
        assert found("--error", "boom", "--limit", 3) == ids[:3]

    def test_show_prints_the_traceback(self, run, topic):
        id = topic.send(1).id
        with topic.consumer() as consumer:
            (one,) = consumer.receive(1)
            try:
                raise ValueError("boom")
            except ValueError as error:
                one.nack(error=error)

        shown = run("dlq", "show", topic.name, id).stdout

        assert "ValueError: boom" in shown
        assert "  Traceback (most recent call last):" in shown

    def test_redrive_by_filter(self, run, topic, client):
        bury(topic, "boom 1", "boom 2", "other")

        dry = run("dlq", "redrive", topic.name, "--error", "boom", "--dry-run")
        assert "would send back 2 dead letters (error boom)" in dry.stdout
        done = run("dlq", "redrive", topic.name, "--error", "boom", "--yes", "--json")
        (job,) = client.admin.jobs(topic.name)
        assert json.loads(done.stdout) == {
            "topic": topic.name, "dry_run": False, "job": job.id, "matched": 2, "sent": 2,
            "unreadable": 0, "to": None, "refused": {},
        }  # fmt: skip
        assert client.admin.stats(topic.name)["dead"] == 1
        assert run("dlq", "redrive", topic.name, "--error", "boom", "--yes").exit_code == 3

    def test_redrive_to_another_topic(self, run, topic, client):
        bury(topic, "boom 1", "boom 2", "other")
        to = f"{topic.name}-v2"
        asked = ("dlq", "redrive", topic.name, "--error", "boom", "--to", to)
        missing = run(*asked, "--dry-run")
        client.topic(to).open()

        dry = run(*asked, "--dry-run")
        done = run(*asked, "--yes")
        itself = run("dlq", "redrive", topic.name, "--to", topic.name, "--yes")

        assert (missing.exit_code, to in missing.stderr) == (3, True)
        assert dry.stdout == (
            f"{topic.name}: would send 2 dead letters (error boom) to topic '{to}'; "
            "nothing was changed\n"
        )
        assert done.stdout == f"{topic.name}: 2 dead letters sent to {to}\n"
        assert (client.admin.stats(topic.name)["dead"], client.admin.stats(to)["accepted"]) == (
            1,
            2,
        )
        assert (itself.exit_code, "the topic itself" in itself.stderr) == (2, True)
        (job,) = client.admin.jobs(topic.name)
        shown = run("job", "show", job.id).stdout
        assert f"redrive of dead letters of {topic.name} to {to}" in shown

    def test_redrive_to_a_topic_that_refuses_some_says_why_and_leaves_them(
        self, run, topic, client
    ):
        bury(topic, "boom 1", "boom 2", "boom 3")
        to = f"{topic.name}-v2"
        client.topic(to, max_length=1).open()

        done = run("dlq", "redrive", topic.name, "--to", to, "--yes", "--json")
        (job,) = client.admin.jobs(topic.name)
        again = run("dlq", "redrive", topic.name, "--to", to, "--yes")
        shown = run("job", "show", job.id, "--outcomes", 5).stdout

        assert (done.exit_code, again.exit_code) == (4, 1)
        assert json.loads(done.stdout)["refused"] == {"full": 2}
        assert "2 dead letters stayed: 2 full (the topic has reached max_length)" in again.stderr
        assert "left: full" in shown
        assert sorted(line.split()[-1] for line in shown.splitlines()[-3:]) == [
            "done", "full", "full",
        ]  # fmt: skip

    def test_redrive_by_id_does_not_ask_and_reports_ids_that_did_not_match(self, run, topic):
        (id,) = bury(topic, "boom")

        assert run("dlq", "redrive", topic.name, "--id", id).exit_code == 0
        (other,) = bury(topic, "boom") if topic.cancel(id) else ()
        some = run("dlq", "redrive", topic.name, "--id", other, "--id", id)
        assert (some.exit_code, "1 of 2 ids did not match" in some.stderr) == (4, True)

    def test_redrive_at_a_rate_stops_at_ctrl_c_and_goes_on_later(self, shell, run, topic, client):
        bury(topic, *("boom" for _ in range(20)))
        running = shell.start(
            "dlq", "redrive", topic.name, "--yes", "--rate", 2,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        wait_for(lambda: client.admin.stats(topic.name)["redriven"] >= 2)

        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=90)

        assert running.returncode == 130
        told = err.decode()
        assert re.fullmatch(
            r"stopped while working, after \d+ of 20; "
            r"rmq server continues job \S+, or rmq job resume; rmq job stop ends it",
            told.strip(),
        )
        assert 0 < client.admin.stats(topic.name)["dead"] < 20
        assert run("dlq", "redrive", topic.name, "--yes").exit_code == 0
        assert client.admin.stats(topic.name)["redriven"] == 20

    def test_purge_by_filter(self, run, topic, client):
        bury(topic, "boom", "other")

        dry = json.loads(run("dlq", "purge", topic.name, "--dry-run", "--json").stdout)
        assert dry["matched"] == 2
        done = run("dlq", "purge", topic.name, "--error", "boom", "--yes")
        assert done.stdout == f"{topic.name}: 1 dead letter deleted\n"
        assert client.admin.stats(topic.name)["dead"] == 1

    def test_no_dead_letters(self, run, topic):
        assert run("dlq", "ls", topic.name).exit_code == 0
        assert run("dlq", "redrive", topic.name, "--yes").exit_code == 3
        assert run("dlq", "purge", topic.name, "--yes").exit_code == 3

    def test_a_letter_that_cannot_be_read_stays_and_is_reported(self, run, topic, server):
        (id,) = bury(topic, "boom")
        with server.raw() as raw:
            raw.hset(f"rmq:{{{topic.name}_0}}:records", rmq.MessageId.parse(id).member, b"\xff")

        listed = run("dlq", "ls", topic.name)
        done = run("dlq", "redrive", topic.name, "--yes")

        assert "0xff" in listed.stdout
        assert done.exit_code == 1
        assert "1 dead letter cannot be read and stayed" in done.stderr
        assert run("dlq", "purge", topic.name, "--id", id, "--yes").exit_code == 0
