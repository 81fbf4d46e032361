from __future__ import annotations

import json
import re
import subprocess
from datetime import UTC, datetime, timedelta

import pytest

import rmq
from rmq.kernel.producer.encode import RUNTIME_MARK
from tests.cli.conftest import ndjson
from tests.patience import wait_for


def test_send_prints_the_id_and_get_finds_it(shell, topic):
    sent = shell("send", topic.name, '{"id": 7, "é": "日本"}', "--priority", 900)
    found = shell("get", topic.name, sent.stdout.strip(), "--json")

    assert (sent.returncode, "stored in slot 0" in sent.stderr) == (0, True)
    message = json.loads(found.stdout)
    assert message["body"] == {"id": 7, "é": "日本"}
    assert (message["priority"], message["queue"], message["deliveries"]) == (900, "store", 0)


def test_every_option_reaches_the_message(run, topic):
    at = (datetime.now(UTC) + timedelta(hours=1)).replace(microsecond=0)
    told = json.loads(
        run(
            "send", topic.name, "1", "--at", at.isoformat(), "--priority", 50, "--expires", "1h",
            "--header", "a=b=c", "--header", "d=", "--slot-basis", "x", "--json",
        ).stdout
    )  # fmt: skip

    message = topic.get(told["id"])

    assert message.due == at
    assert message.expires is not None
    assert message.headers == {"a": "b=c", "d": ""}
    assert message.priority == 50


def test_delay_merge_and_resend(run, topic):
    delayed = topic.get(run("send", topic.name, "1", "--delay", "5m").stdout.strip())
    assert timedelta(minutes=4) < delayed.due - datetime.now(UTC) <= timedelta(minutes=5)

    merging = ("--merge-key", "k", "--time-range", "1m", "--merge", "collect", "--extend",
               "--max-wait", "2m")  # fmt: skip
    first = run("send", topic.name, '"a"', *merging)
    second = run("send", topic.name, '"b"', *merging)
    assert first.stdout == second.stdout
    assert "merged" in second.stderr
    assert topic.get(first.stdout.strip()).body == ["a", "b"]

    id = topic.new_id()
    assert "stored" in run("send", topic.name, "1", "--id", id).stderr
    assert "duplicate" in run("send", topic.name, "1", "--id", id).stderr

    first, again = (run("send", topic.name, body, "--dedup-key", "order 7") for body in "12")
    assert first.stdout == again.stdout
    assert "duplicate: the message was sent before" in again.stderr
    assert topic.get(first.stdout.strip()).body == 1
    assert re.search(r"^made +-$", run("get", topic.name, first.stdout.strip()).stdout, re.M)


def test_raw_text_and_files(run, topic, tmp_path):
    path = tmp_path / "body"
    path.write_bytes(b"\x00\xff\n")

    text = run("send", topic.name, "not json", "--raw").stdout.strip()
    data = run("send", topic.name, "--raw", "--file", path).stdout.strip()
    path.write_text('{"a":\n 1}')
    whole = run("send", topic.name, "--file", path).stdout.strip()
    piped = run("send", topic.name, "--file", "-", stdin='{"b":\n2}').stdout.strip()

    assert topic.get(text).body == b"not json"
    assert topic.get(data).body == b"\x00\xff\n"
    assert topic.get(whole).body == {"a": 1}
    assert topic.get(piped).body == {"b": 2}
    assert json.loads(run("get", topic.name, text, "--json").stdout)["body_text"] == "not json"
    assert json.loads(run("get", topic.name, data, "--json").stdout)["body_hex"] == "00ff0a"


def test_a_body_may_begin_with_a_dash(run, topic):
    assert topic.get(run("send", topic.name, "--", "-5").stdout.strip()).body == -5


@pytest.mark.parametrize("body", ["hello", "{", "NaN", "[Infinity]", "", "1 2", '"\\ud800"'])
def test_what_is_not_json_is_not_sent(run, topic, client, body):
    done = run("send", topic.name, body)

    assert done.exit_code in (1, 2)
    assert client.admin.stats(topic.name)["accepted"] == 0


@pytest.mark.parametrize(
    "words",
    [
        (), ("1", "--file", "-"), ("-", "--id", "0" * 26), ("1", "--results"),
        ("-", "--dedup-key", "k"), ("1", "--dedup-key", ""), ("1", "--dedup-key", "k" * 201),
        ("1", "--dedup-key", "k", "--merge-key", "k", "--time-range", "1s"),
        ("1", "--priority", "5"), ("1", "--delay", "-5"),
        ("1", "--delay", "1s", "--merge-key", "k"),
        ("1", "--merge", "last"), ("1", "--at", "2001-01-01T00:00:00Z"),
        ("1", "--delay", "1s", "--at", "2100-01-01T00:00Z"), ("1", "--header", "rmq-x=1"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_what_cannot_work_is_refused(run, topic, client, words):
    assert run("send", topic.name, *words).exit_code == 2
    assert client.admin.stats(topic.name)["accepted"] == 0


def test_a_missing_topic_is_created_on_request(run, client, name):
    assert run("send", name, "1", "--create").exit_code == 0

    assert client.admin.stats(name)["accepted"] == 1


def test_too_large_a_body_is_exit_code_1(run, client, name):
    client.topic(name, max_body=10).open()

    done = run("send", name, json.dumps("x" * 100))

    assert done.exit_code == 1
    assert "max_body" in done.stderr


class TestStream:
    def test_ten_thousand_lines(self, shell, client, name):
        client.topic(name, slots=4).open()

        done = shell("send", name, "-", stdin="".join(f'{{"n": {n}}}\n' for n in range(10_000)))

        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == "10000 messages sent: 10000 stored\n"
        assert client.admin.stats(name)["accepted"] == 10_000
        with client.topic(name).consumer() as consumer:
            found = set()
            while got := consumer.receive(1000):
                found |= {one.body["n"] for one in got}
                consumer.ack(got)
        assert found == set(range(10_000))

    def test_json_is_one_document_or_one_result_a_line(self, run, topic):
        whole = run("send", topic.name, "-", "--json", stdin="1\n\n2")
        each = run("send", topic.name, "-", "--json", "--results", stdin="1\r\n2\r\n")

        assert json.loads(whole.stdout) == {"sent": 2, "stored": 2, "merged": 0, "duplicate": 0}
        assert [topic.get(one["id"]).body for one in ndjson(each.stdout)] == [1, 2]

    def test_a_bad_line_stops_it_before_its_batch(self, shell, topic, client):
        lines = [str(n) for n in range(2500)]
        lines[1502] = "{oops"

        done = shell("send", topic.name, "-", stdin="\n".join(lines))

        assert (done.returncode, done.stdout) == (4, "")
        assert done.stderr.startswith("rmq: line 1503: not JSON")
        assert "1000 messages before it were sent (to line 1000)" in done.stderr
        assert "tail -n +1001" in done.stderr
        assert client.admin.stats(topic.name)["accepted"] == 1000

    @pytest.mark.parametrize(
        ("bad", "said"),
        [
            (b"{", "not JSON"),
            (b'"\x07"', "not JSON: Invalid control character at character 2"),
            (b'"\xff"', "not UTF-8"),
            (b"[" * 100_000, "not JSON"),
            (b'{"body": 1, "priority": 3}', "priority"),
            (b'{"body": 1, "priority": "20"}', "priority"),
            (b'{"body": 1, "delya": 3}', "'delya' is not a field"),
            (b'{"priority": 30}', "has no body"),
            (b"[1]", "an envelope is an object"),
            (b'{"body": 1, "delay": "soon"}', "is not a duration"),
            (b'{"body": 1, "at": "2030-01-01"}', "no time zone"),
            (b'{"body": 1, "at": 1700000000000}', "at: 1700000000000 is more than a year ago"),
            (b'{"body": 1, "headers": {"a": 1}}', "headers"),
            (b'{"body": 1, "merge_key": "k"}', "time_range"),
            (b'{"body": 1, "id": "zzz"}', "id"),
            (b'{"body": 1, "dedup_key": 7}', "dedup_key: int"),
            (b'{"body": "' + b"x" * 300_000 + b'"}', "max_body"),
        ],
        ids=lambda one: one[:30].decode("latin-1") if isinstance(one, bytes) else "",
    )
    def test_a_line_that_cannot_work_is_named(self, run, topic, client, bad, said):
        stdin = b'{"body": 1}\n{"body": 2}\n' + bad + b'\n{"body": 4}\n'

        done = run("send", topic.name, "-", "--envelope", stdin=stdin)

        assert done.exit_code in (1, 2)
        assert done.stderr.startswith("rmq: line 3: ")
        assert said in done.stderr
        assert "nothing was sent" in done.stderr
        assert client.admin.stats(topic.name)["accepted"] == 0

    def test_the_last_line_at_fault_is_named_too(self, run, topic):
        done = run("send", topic.name, "-", "--envelope", stdin='{"body":1}\n{"body":1,"delay":-1}')

        assert done.stderr.startswith("rmq: line 2: ")

    def test_envelopes_win_over_options(self, run, topic):
        lines = [
            '{"body": 1}',
            '{"body": 2, "priority": 30, "headers": {"a": "b"}}',
            '{"body": 3, "delay": "1h"}',
            '{"body": 4, "at": "2100-01-01T00:00:00Z"}',
        ]

        done = run(
            "send", topic.name, "-", "--envelope", "--priority", 99, "--delay", "1m",
            "--results", "--json", stdin="\n".join(lines),
        )  # fmt: skip

        assert done.exit_code == 2  # at is beyond ten years: the error of line 4
        assert json.loads(done.stderr)["error"]["message"].startswith("line 4: at: ")
        done = run(
            "send", topic.name, "-", "--envelope", "--priority", 99,
            "--results", "--json", stdin="\n".join(lines[:3]),
        )  # fmt: skip
        found = [topic.get(one["id"]) for one in ndjson(done.stdout)]
        assert [one.priority for one in found] == [99, 30, 99]
        assert found[1].headers == {"a": "b"}
        assert found[2].due is not None

    def test_what_peek_prints_can_be_sent_again_raw(self, run, topic):
        stdin = '{"body_text": "té"}\n{"body_hex": "00ff"}\n{"body": "x"}'

        done = run(
            "send", topic.name, "-", "--raw", "--envelope", "--results", "--json", stdin=stdin
        )

        bodies = [topic.get(one["id"]).body for one in ndjson(done.stdout)]
        assert bodies == ["té".encode(), b"\x00\xff", b"x"]

    def test_raw_lines(self, run, topic):
        done = run("send", topic.name, "-", "--raw", "--results", stdin=b"a b\n\xff\n")

        bodies = [topic.get(one.split()[0]).body for one in done.stdout.splitlines()]
        assert bodies == [b"a b", b"\xff"]

    def test_a_full_topic_stops_it_and_tells_what_went_through(self, run, client, name):
        client.topic(name, max_length=1500).open()

        done = run("send", name, "-", stdin="\n".join(map(str, range(3000))))

        assert done.exit_code == 4
        assert "lines 1001 to 2000" in done.stderr
        there = client.admin.stats(name)["accepted"]
        assert 1000 <= there <= 1500

    def test_a_slow_pipe_is_sent_as_it_comes(self, shell, topic, client):
        running = shell.start(
            "send", topic.name, "-",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        running.stdin.write(b'"early"\n"half')
        running.stdin.flush()
        seen = wait_for(lambda: client.admin.stats(topic.name)["accepted"])

        out, err = running.communicate(b'-line"', timeout=90)

        assert (seen, err) == (1, b"")
        assert out == b"2 messages sent: 2 stored\n"

    def test_redis_that_goes_away_is_exit_code_5_with_the_count(self, shell, own_server, tmp_path):
        env = {"RMQ_URL": own_server.url}
        assert shell("topic", "create", "t", env=env).returncode == 0
        shell.env["RMQ_URL"] = own_server.url
        running = shell.start(
            "send", "t", "-", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        running.stdin.write(b"1\n")
        running.stdin.flush()
        with rmq.Client(own_server.url) as probe:
            wait_for(lambda: probe.admin.stats("t")["accepted"])
            probe.admin.stats("t")  # Redis may have answered us first; now all replies are out
        own_server.kill()

        _, err = running.communicate(b"2\n3\n", timeout=90)

        assert running.returncode == 5
        assert b"rmq: lines 2 to 3: " in err
        assert b"1 message before it was sent (to line 1)" in err

    def test_progress_is_shown_on_a_terminal_only(self, shell, topic):
        code, shown = shell.on_terminal("send", topic.name, "1")
        assert code == 0
        assert "\x1b[" not in shown

        quiet = shell("send", topic.name, "-", stdin="1\n2\n")
        assert quiet.stderr == ""


def test_a_bound_on_the_run_of_a_handler_is_an_option_and_a_field_of_an_envelope(run, topic):
    run("send", topic.name, "1", "--max-runtime", "1m")
    lines = '{"body": 2, "max_runtime": "5s"}\n{"body": 3, "max_runtime": 0.5}\n'
    run("send", topic.name, "-", "--envelope", stdin=lines)

    with topic.consumer() as consumer:
        found = {d.body: d.marks[RUNTIME_MARK] for d in consumer.receive(3)}
    assert found == {1: "60000", 2: "5000", 3: "500"}
    assert run("send", topic.name, "1", "--max-runtime", "0").exit_code == 2


def test_a_type_is_an_option_and_a_field_of_an_envelope(run, topic):
    one = run("send", topic.name, "1", "--type", "order.refunded")
    lines = '{"body": 2, "type": "b"}\n{"body": 3}\n'
    run("send", topic.name, "-", "--envelope", "--type", "a", stdin=lines)

    assert one.exit_code == 0
    assert run("send", topic.name, "1", "--type", "a b").exit_code == 2
    found = {m["body"]: m["type"] for m in ndjson(run("peek", topic.name, "--json").stdout)}
    assert found == {1: "order.refunded", 2: "b", 3: "a"}
