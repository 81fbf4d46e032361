from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from rmq.cli_framework import options
from rmq.errors import PAGE
from tests.patience import wait_for
from tests.servers import free_port

SECRET = "hunter2-very-secret"


def only_line(text: str, docs: str = "") -> str:
    """Return the line of an error; `docs`: the exception that a second line has to name."""
    found, *others = text.splitlines()
    assert found.startswith("rmq: ")
    assert others == ([f"rmq: explained by: rmq explain {docs}"] if docs else [])
    return found


def test_no_redis_fails_in_two_seconds_with_exit_code_5(run, monkeypatch):
    assert options.RETRY_FOR_S <= 2
    monkeypatch.setattr(options, "RETRY_FOR_S", 0.3)

    done = run("ping", "--url", f"redis://127.0.0.1:{free_port()}")

    assert done.exit_code == 5
    assert "cannot be reached" in only_line(done.stderr, "Unavailable")


def test_an_error_with_json_is_json_on_stderr(run):
    done = run("topic", "show", "nowhere", "--json")

    assert (done.exit_code, done.stdout) == (3, "")
    error = json.loads(done.stderr)["error"]
    assert (error["type"], error["exit"]) == ("TopicNotFound", 3)
    assert "rmq topic create nowhere" in error["message"]
    assert error["docs"] == "docs/errors.md#topicnotfound"


@pytest.mark.parametrize(
    "words",
    [
        ("peek", "nowhere"),
        ("send", "nowhere", "1"),
        ("tail", "nowhere"),
        ("tail", "nowhere", "--consume"),
        ("get", "nowhere", "0" * 26),
        ("cancel", "nowhere", "0" * 26),
        ("reschedule", "nowhere", "0" * 26, "--delay", "1s"),
        ("priority", "nowhere", "0" * 26, "--to", "20"),
        ("dlq", "ls", "nowhere"),
        ("dlq", "show", "nowhere", "0" * 26),
        ("dlq", "redrive", "nowhere"),
        ("dlq", "purge", "nowhere"),
        ("purge", "nowhere"),
        ("stats", "nowhere"),
        ("topic", "show", "nowhere"),
    ],
    ids=" ".join,
)
def test_a_missing_topic_is_exit_code_3_and_is_not_created(run, client, words):
    done = run(*words)

    assert done.exit_code == 3
    assert "rmq topic create nowhere" in only_line(done.stderr, "TopicNotFound")
    assert "nowhere" not in client.admin.topics()


def test_a_mistyped_topic_gets_the_name_that_is_near(run, topic):
    typed = topic.name[:-1]
    assert f"prefix 'rmq', did you mean {topic.name!r}?; create it: rmq topic create" in only_line(
        run("peek", typed).stderr, "TopicNotFound"
    )
    assert "did you mean" not in only_line(run("peek", "x").stderr, "TopicNotFound")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("peek",), "Missing argument 'TOPIC'"),
        (("nonsense",), "No such command 'nonsense'; see"),
        (("topics",), "No such command 'topics', did you mean 'topic'?"),
        (("dlq", "redive"), "No such command 'redive', did you mean 'redrive'?"),
        (("peek", "t", "--nonsense"), "No such option"),
        (("peek", "bad topic"), "bad topic"),
        (("get", "t", "short"), "is not a message id"),
        (("send", "t", "1", "--delay", "soon"), "is not a duration"),
        (("send", "t", "1", "--at", "2030-01-01T00:00:00"), "no time zone"),
        (("send", "t", "1", "--header", "novalue"), "give name=value"),
        (("send", "t", "--file", "/nonexistent/x"), "No such file"),
        (("topic", "create", "t", "--retry", "sometimes"), "is not a retry policy"),
        (("topic", "create", "t", "--durability", "fsync:x"), "is not a durability"),
        (("topic", "create", "t", "--slots", "0"), "slots"),
        (("reschedule", "t", "0" * 26), "either --at or --delay"),
        (("stats", "--slots"), "name the TOPIC"),
        (("ping", "--url", "http://x"), "scheme 'http' is unknown"),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, tuple) else "",
)
def test_wrong_usage_is_exit_code_2_and_one_line(run, words, said):
    done = run(*words)

    assert (done.exit_code, done.stdout) == (2, "")
    assert said in only_line(done.stderr)


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:{SECRET}@127.0.0.1:1/0",
        f"redis://user:{SECRET}@127.0.0.1:1/0",
        f"redis://user:p@ss{SECRET}@127.0.0.1:1/0",
        f"redis://127.0.0.1:1/0?password={SECRET}",
        f"user:{SECRET}@127.0.0.1:1",
        f"redis//user:{SECRET}@127.0.0.1:1",
        f"http://user:{SECRET}@127.0.0.1",
        f"redis://user:{SECRET}@127.0.0.1:notaport",
        f"redis://user:{SECRET}@127.0.0.1:1/notadatabase",
        f"redis://user:{SECRET}@127.0.0.1:1/0?retry=1",
    ],
)
@pytest.mark.parametrize("debug", ["", "1"])
def test_a_password_is_never_shown(run, url, debug, monkeypatch):
    monkeypatch.setattr("rmq.cli_framework.options.RETRY_FOR_S", 0.0)
    for words in (("ping", "--url", url), ("ping", "--json", "--url", url)):
        done = run(*words, RMQ_DEBUG=debug)

        assert done.exit_code in (2, 5)
        assert SECRET not in done.output


def test_a_wrong_password_is_not_shown(run, server):
    done = run("ping", "--url", server.url.replace("//", f"//user:{SECRET}@"))

    assert done.exit_code == 2
    assert "access" in only_line(done.stderr)
    assert SECRET not in done.output


def test_ping_works_with_a_password_and_hides_it(run, server, client):
    with server.raw() as raw:
        raw.execute_command("ACL", "SETUSER", "cli", "on", f">{SECRET}", "~*", "+@all")
        done = run("ping", "--json", "--url", server.url.replace("//", f"//cli:{SECRET}@"))
        raw.execute_command("ACL", "DELUSER", "cli")

    assert done.exit_code == 0
    assert json.loads(done.stdout)["url"].count("***") == 1
    assert SECRET not in done.output


def test_a_traceback_is_shown_only_on_request(run):
    quiet, loud = run("peek", "nowhere"), run("peek", "nowhere", RMQ_DEBUG="1")

    assert "Traceback" not in quiet.stderr
    assert "Traceback" in loud.stderr


def test_an_unexpected_error_is_one_line_too(run, monkeypatch):
    def broken(*_: object) -> None:
        raise KeyError("oh\x1b[31m")

    monkeypatch.setattr("rmq.Admin.topics", broken)

    done = run("topic", "ls")

    assert done.exit_code == 1
    assert "unexpected KeyError" in only_line(done.stderr)
    assert "\x1b" not in done.stderr


def test_a_prefix_keeps_topics_apart(run, name):
    assert run("topic", "create", name, "--prefix", "mine").exit_code == 0

    assert run("topic", "show", name).exit_code == 3
    assert run("topic", "show", name, RMQ_PREFIX="mine").exit_code == 0
    assert run("--prefix", "mine", "topic", "show", name).exit_code == 0
    assert run("topic", "show", name, "--prefix", "mine", RMQ_PREFIX="other").exit_code == 0


STREAMS = (">&-", "2>&-", "<&-")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_under_the_output_is_named(shell, topic):
    with open("/dev/full", "w") as full:
        running = shell.start("topic", "ls", stdout=full, stderr=subprocess.PIPE)
        printed = running.stderr.read().decode()

    assert running.wait(90) == 1
    assert "rmq: the output cannot be written: No space left on device; " in only_line(printed)


@pytest.mark.posix
@pytest.mark.parametrize(
    "closed", [*(pytest.param(one, marks=pytest.mark.slow) for one in STREAMS), " ".join(STREAMS)]
)
def test_a_closed_stream_does_not_stop_a_command(shell, client, topic, closed):
    line = f"exec {sys.executable} -m rmq send {topic.name} 1 {closed}"

    done = subprocess.run(["sh", "-c", line], env=shell.env, capture_output=True, text=True)

    assert (done.returncode, "unexpected" in done.stderr) == (0, False)
    assert client.admin.stats(topic.name)["accepted"] == 1


def test_explain_prints_the_section_of_an_error(run):
    done = run("explain", "leaselost")
    listed = run("explain").stdout.splitlines()

    assert done.stdout.startswith("LeaseLost\n\n")
    assert "- Lost: " in done.stdout
    assert "- Do: " in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert {line.split()[0] for line in listed[1:]} >= {"LeaseLost", "QueueFull", "Unavailable"}
    assert [line for line in listed if "](" in line] == []


def test_explain_has_the_text_of_the_page_for_every_error(run):
    page = (Path(__file__).parents[2] / PAGE).read_text()

    explained = json.loads(run("explain", "--json").stdout)

    assert len(explained) == page.count("\n### ")
    for each in explained:
        assert f"\n### {each['name']}\n\n{each['text']}\n" in page


def test_explain_of_an_unknown_error_names_the_one_that_is_near(run):
    done = run("explain", "LeaseLots")

    assert done.exit_code == 2
    assert "did you mean 'LeaseLost'?" in only_line(done.stderr)


def test_a_reader_that_goes_away_is_no_error(shell, topic):
    shell("send", topic.name, "-", stdin="\n".join(map(str, range(5000))))
    running = shell.start(
        "peek", topic.name, "--limit", 5000, "--json",
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip

    running.stdout.readline()
    running.stdout.close()

    assert running.stderr.read() == b""
    assert running.wait(90) == 141
    running.stderr.close()


def test_ctrl_c_is_quiet_and_130(shell, topic):
    running = shell.start(
        "tail", topic.name, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    assert b"Ctrl-C ends" in running.stderr.readline()

    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=90)

    assert (running.returncode, out, err.strip()) == (130, b"", b"")


def test_ctrl_c_in_a_stream_tells_where_to_go_on(shell, topic, client):
    running = shell.start(
        "send", topic.name, "-", stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        stdin=subprocess.PIPE,
    )  # fmt: skip
    running.stdin.write(b"1\n2\n\n3\n")
    running.stdin.flush()
    wait_for(lambda: client.admin.stats(topic.name)["accepted"] == 3)
    # Its reply has woken the program, which now waits for the next line.
    program = psutil.Process(running.pid)
    asleep = psutil.STATUS_SLEEPING
    wait_for(lambda: {time.sleep(0.02) or program.status() for _ in range(10)} == {asleep})

    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=90)

    assert (running.returncode, out) == (130, b"")
    assert err.decode().strip() == "stopped: 3 messages sent; continue from line 5: tail -n +5"


@pytest.mark.parametrize("word", ["redis", "localhost", "user"])
def test_a_password_that_is_a_word_does_not_cut_up_the_text(run, word, monkeypatch):
    monkeypatch.setattr("rmq.cli_framework.options.RETRY_FOR_S", 0.0)

    done = run("ping", "--url", f"redis://user:{word}@127.0.0.1:1/0")

    assert "redis://user:***@127.0.0.1:1/0 cannot be reached" in only_line(
        done.stderr, "Unavailable"
    )
    assert f":{word}@" not in done.output


def test_an_option_of_the_url_that_there_is_not_is_named(run):
    done = run("ping", "--url", "redis://127.0.0.1:1/0?tiemout=3")

    assert done.exit_code == 2
    assert "there is no option 'tiemout'" in only_line(done.stderr)


def test_the_default_address_is_reported_as_such(run, monkeypatch):
    monkeypatch.setattr("rmq.cli_framework.options.RETRY_FOR_S", 0.0)
    monkeypatch.setattr("rmq.client.client.DEFAULT_URL", "redis://127.0.0.1:1/0")
    monkeypatch.delenv("RMQ_URL", raising=False)

    done = run("ping", RMQ_URL=None)

    assert done.exit_code == 5
    assert "no url was given and RMQ_URL is not set" in only_line(done.stderr, "Unavailable")
