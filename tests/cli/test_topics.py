from __future__ import annotations

import json
import re
from typing import ClassVar

import pytest

import rmq
from rmq.kernel.core import retry, settings, validation
from rmq.kernel.core.keys import topic_key, topics_key
from rmq.kernel.topic import overview
from tests.conftest import any_binary
from tests.servers import Server


def test_ping_tells_address_time_and_server(run, server):
    told = json.loads(run("ping", "--json").stdout)

    assert told["url"] == server.url
    assert told["ms"] > 0
    assert told["server"] in ("redis", "valkey")
    assert re.match(r"\d+\.\d+", told["version"])
    assert told["wakes"] is True
    assert told["maxmemory_policy"] == "noeviction"
    assert run("ping").stdout.startswith(f"{server.url}: ")


def test_ping_says_what_a_user_without_channels_lacks(run, server):
    url = server.url.replace("redis://", "redis://mute:pw@")
    with server.raw() as raw:
        raw.execute_command("ACL", "SETUSER", "mute", "on", ">pw", "~*", "+@all", "resetchannels")
        told, shown = run("ping", "--json", "--url", url), run("ping", "--url", url)
        raw.execute_command("ACL", "DELUSER", "mute")

    assert json.loads(told.stdout)["wakes"] is False
    assert "ACL SETUSER <user> '&rmq:*'" in shown.stdout


def test_ping_and_create_warn_of_a_redis_that_may_evict_keys(run, shell, name):
    server = Server(any_binary(), "--maxmemory-policy", "allkeys-lru")
    try:
        told = run("ping", "--json", "--url", server.url)
        shown = run("ping", "--url", server.url)
        created = shell("topic", "create", name, "--url", server.url)
    finally:
        server.stop()

    assert json.loads(told.stdout)["maxmemory_policy"] == "allkeys-lru"
    assert (told.exit_code, shown.exit_code, created.returncode) == (0, 0, 0)
    for text in (shown.stdout, created.stderr):
        assert "maxmemory-policy of this Redis is allkeys-lru" in text
        assert "CONFIG SET maxmemory-policy noeviction" in text


def test_create_with_every_setting_and_show_them(run, name):
    given = [
        "--slots", "3", "--default-priority", "200", "--timed-priority", "150", "--lease", "1m",
        "--max-retries", "4",
        "--retry", "levels:1s,1m:0.5", "--dedup-window", "off", "--max-length", "300",
        "--overflow", "block", "--max-body", "2M", "--expires", "1d", "--on-expire", "drop",
        "--durability", "replicated:1:500ms", "--dead-retention", "7d", "--unhandled", "2h",
        "--limit", "rate:100:1m,concurrency:6", "--slo", "p95<1.5s", "--max-depth", "50",
        "--groups", "concurrency=5, share.gold=4", "--dead-to", f"{name}-graves",
        "--history", "keep=7d,max_bytes=2GiB",
    ]  # fmt: skip

    run("topic", "create", f"{name}-graves")
    made = json.loads(run("topic", "create", name, *given, "--json").stdout)

    assert (made["topic"], made["created"]) == (name, True)
    assert made["settings"] == {
        "slots": 3, "default_priority": 200, "timed_priority": 150, "lease": 60.0, "max_retries": 4,
        "retry": "levels:1s,1m:0.5", "dedup_window": 0.0, "max_length": 300, "overflow": "block",
        "max_body": 2 * 1024 * 1024, "expires": 86400.0, "on_expire": "drop",
        "durability": "replicated:1:500ms", "dead_retention": 604800.0, "unhandled": 7200.0,
        "limit": "rate:100:1m,concurrency:6", "slo": "p95<1.5s", "max_depth": 50,
        "groups": "concurrency=5,share.gold=4", "dead_to": f"{name}-graves",
        "history": "keep=7d,max_bytes=2GiB",
    }  # fmt: skip
    assert json.loads(run("topic", "show", name, "--json").stdout)["settings"] == made["settings"]
    shown = run("topic", "show", name).stdout
    for words in ("lease             1m", "dedup_window      off", "dead_retention    7d"):
        assert words in shown


def test_groups_are_refused_where_they_cannot_be_and_are_fixed(run, name):
    wrong = run("topic", "create", name, "--groups", "concurrency=5,on_dead=stop")
    run("topic", "create", name, "--groups", "order,on_dead=hold")

    changed = run("topic", "set", name, "--groups", "off")
    other = run("topic", "create", name, "--groups", "off")

    assert (wrong.exit_code, changed.exit_code, other.exit_code) == (2, 2, 2)
    assert "groups.on_dead: 'stop'; give continue or hold" in wrong.stderr
    assert "groups: it cannot be changed here" in changed.stderr
    assert "order,on_dead=hold for groups in Redis and off in settings" in other.stderr


def test_slo_is_changed_and_a_wrong_one_refused(run, name):
    run("topic", "create", name)

    set_it = run("topic", "set", name, "--slo", "p99<2s")
    wrong = run("topic", "set", name, "--slo", "p97<2s")

    assert set_it.stdout == f"{name}: slo off -> p99<2s\n"
    assert wrong.exit_code == 2
    assert "give off, or p50, p90, p95 or p99, <, and a duration, as p99<2s" in wrong.stderr
    assert run("topic", "set", name, "--slo", "off").stdout == f"{name}: slo p99<2s -> off\n"


def test_create_again_is_fine_and_with_other_settings_is_not(run, name):
    assert "created, 2 slots" in run("topic", "create", name, "--slots", "2").stdout

    again = run("topic", "create", name)
    other = run("topic", "create", name, "--slots", "3")

    assert (again.exit_code, "is there already" in again.stdout) == (0, True)
    assert (other.exit_code, "3 in settings" in other.stderr) == (2, True)


def test_ls_lists_what_each_topic_holds(run, topic):
    topic.send(1)
    topic.send(2, delay=600)

    found = {one["topic"]: one for one in json.loads(run("topic", "ls", "--json").stdout)}
    shown = run("topic", "ls").stdout

    assert (found[topic.name]["waiting"], found[topic.name]["later"]) == (1, 1)
    assert re.search(rf"^{topic.name} +1 +1 +1 +0 +0$", shown, re.MULTILINE)


def test_pause_and_resume_are_told_and_shown(run, topic):
    topic.send(1)
    name = topic.name

    paused = json.loads(
        run("topic", "pause", name, "--why", "closed", "--by", "me", "--json").stdout
    )

    assert (paused["paused"]["by"], paused["paused"]["why"]) == ("me", "closed")
    again = run("topic", "pause", name, "--why", "another").stdout
    assert re.fullmatch(rf"{name}: paused since \d{{4}}-\S+Z by me: closed\n", again)
    assert json.loads(run("topic", "show", name, "--json").stdout)["paused"] == paused["paused"]
    shown = run("topic", "show", name).stdout
    assert re.search(r"^state +paused since \S+ by me: closed$", shown, re.MULTILINE)
    assert re.search(r"^held +1$", shown, re.MULTILINE)
    assert re.search(
        rf"^{name}: paused since \S+, 1 message held$", run("topic", "ls").stderr, re.M
    )
    assert re.search(rf"^{name}: paused since \S+, 1 message held$", run("stats").stderr, re.M)
    assert re.search(
        r"^held back by a pause, limit or group +1$", run("stats", name).stdout, re.MULTILINE
    )
    assert re.search(r"^paused since +\d{4}-\S+Z$", run("stats", name).stdout, re.MULTILINE)
    assert "1 message held" in run("peek", name).stderr

    ended = json.loads(run("topic", "resume", name, "--json").stdout)

    assert ended == {"topic": name, "resumed": paused["paused"]}
    assert run("topic", "resume", name).stdout == f"{name}: was not paused\n"
    assert json.loads(run("topic", "show", name, "--json").stdout)["paused"] is None
    assert "state" not in run("topic", "show", name).stdout
    listed = run("topic", "ls").stderr  # of others' topics, too
    assert not re.search(rf"^{name}:", listed, re.MULTILINE)
    assert "held" not in run("peek", name).stderr
    assert run("topic", "pause", "no-such-topic").exit_code == 3


def test_show_has_the_size_of_a_history(run, topic):
    run("topic", "set", topic.name, "--history", "keep=1h,max_bytes=1MiB")
    topic.send("x" * 100_000)
    with topic.consumer() as consumer:
        consumer.ack(consumer.receive(wait=1))

    shown = run("topic", "show", topic.name).stdout

    assert re.search(r"^history +0.1 MiB, acked in the last \S+$", shown, re.MULTILINE)
    assert re.search(
        r"^bytes of acked messages kept +100[ ,]?\d+$",
        run("stats", topic.name).stdout,
        re.MULTILINE,
    )


def test_pause_of_sends_is_told_shown_and_ended_alone(run, topic):
    name = topic.name
    told = json.loads(run("topic", "pause", name, "--send", "--why", "it moves", "--json").stdout)

    assert (told["verb"], told["paused"]["why"]) == ("send", "it moves")
    refused = run("send", name, "1")
    assert (refused.exit_code, "sends are paused since" in refused.stderr) == (1, True)
    shown = json.loads(run("topic", "show", name, "--json").stdout)
    assert (shown["paused"], shown["sends_paused"]) == (None, told["paused"])
    assert re.search(r"^sends +paused since ", run("topic", "show", name).stdout, re.MULTILINE)
    assert f"{name}: sends paused since" in run("topic", "ls").stderr
    assert re.search(r"^sends paused since +\d{4}-", run("stats", name).stdout, re.MULTILINE)
    again = run("topic", "pause", name, "--both").stdout
    assert again.startswith(f"{name}: receive and send paused since ")
    assert run("topic", "resume", name, "--receive").stdout == f"{name}: resumed\n"
    assert json.loads(run("topic", "show", name, "--json").stdout)["sends_paused"]
    assert run("topic", "resume", name).stdout == f"{name}: resumed\n"
    assert run("send", name, "1").exit_code == 0
    assert run("topic", "pause", name, "--both", "--send").exit_code == 2


def test_limit_is_changed_refused_and_what_it_holds_back_is_shown(run, topic):
    name = topic.name
    topic.send(1)
    topic.send(2)

    changed = run("topic", "set", name, "--limit", "rate:1:1h").stdout

    assert changed == f"{name}: limit off -> rate:1:1h\n"
    told = f"{name}: 1 message held back by the topic's limit or groups\n"
    for command in (("topic", "ls"), ("stats",), ("peek", name)):
        assert told in run(*command).stderr
    assert re.search(r"^held +1$", run("topic", "show", name).stdout, re.MULTILINE)
    assert json.loads(run("stats", name, "--json").stdout)["held"] == 1
    by_key = f"{name}: limit rate:1:1h -> concurrency:1:key=tenant\n"
    assert run("topic", "set", name, "--limit", "concurrency:1:key=tenant").stdout == by_key
    assert run("topic", "set", name, "--limit", "concurrency:1:key=").exit_code == 2
    run("topic", "set", name, "--limit", "rate:1:1h")
    assert "is rate:1:1h already" in run("topic", "set", name, "--limit", "rate:1:1h:1").stdout
    assert run("topic", "set", name, "--limit", "rate").exit_code == 2
    assert run("topic", "set", name, "--limit", "off").stdout == f"{name}: limit rate:1:1h -> off\n"
    assert told not in run("topic", "ls").stderr


def test_ls_goes_on_where_a_topic_cannot_be_read(run, client, topic, server):
    broken = client.topic(f"{topic.name}-broken")
    broken.open()
    with server.raw() as raw:
        raw.delete(f"rmq:{{{broken.name}}}:topic")

        done = run("topic", "ls")
        raw.srem("rmq:topics", broken.name)

    assert done.exit_code == 1
    assert re.search(rf"^{topic.name} ", done.stdout, re.MULTILINE)
    assert re.search(rf"^{broken.name} +\?", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("words", [("topic", "ls"), ("stats",)], ids=" ".join)
@pytest.mark.parametrize("after", ["the names", "the settings"])
def test_a_topic_that_is_deleted_while_all_are_listed_is_left_out(
    run, server, name, monkeypatch, words, after
):
    read, reads = overview._in_pages, []
    with rmq.Client(server.url, prefix=name) as client:
        for topic in ("gone", "stays"):
            client.topic(topic).open()

        def delete_first(*args):
            reads.append(args)
            if len(reads) == ["the names", "the settings"].index(after) + 1:
                client.admin.topic_delete("gone")
            return (yield from read(*args))

        monkeypatch.setattr(overview, "_in_pages", delete_first)
        done = run(*words, RMQ_PREFIX=name)

    assert (done.exit_code, done.stderr) == (0, "")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["TOPIC", "stays"]


def test_set_tells_what_it_changed(run, topic):
    done = run("topic", "set", topic.name, "--lease", "1m", "--dead-retention", "off")

    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        f"{topic.name}: lease 30s -> 1m",
        f"{topic.name}: dead_retention is off already",
    ]
    told = json.loads(run("topic", "set", topic.name, "--max-length", "9", "--json").stdout)
    assert (told["before"]["max_length"], told["settings"]["max_length"]) == (0, 9)
    assert (
        json.loads(run("topic", "show", topic.name, "--json").stdout)["settings"]
        == (told["settings"])
    )


def test_set_refuses_what_is_fixed_and_nothing_at_all(run, topic):
    slots = run("topic", "set", topic.name, "--slots", "4")
    nothing = run("topic", "set", topic.name)
    nowhere = run("topic", "set", f"{topic.name}-x", "--lease", "5s")

    assert (slots.exit_code, nothing.exit_code, nowhere.exit_code) == (2, 2, 3)
    assert "slots: it cannot be changed here" in slots.stderr
    assert "rmq topic resize" in slots.stderr
    assert "use at least one option" in nothing.stderr


def test_delete_refuses_messages_and_asks_and_then_the_topic_is_gone(run, shell, topic):
    topic.send(1)
    dry = run("topic", "delete", topic.name, "--dry-run")
    refused = run("topic", "delete", topic.name, "--yes")
    unasked = run("topic", "delete", topic.name, "--force")

    told = "1 waiting message, 0 in flight and 0 dead letters"
    assert (dry.exit_code, dry.stdout) == (
        0, f"{topic.name}: would delete it with {told}; nothing was changed\n"
    )  # fmt: skip
    assert (refused.exit_code, unasked.exit_code) == (6, 6)
    assert f"holds {told}; nothing was deleted" in refused.stderr
    assert "stdin is no terminal" in unasked.stderr
    code, shown = shell.on_terminal(
        "topic", "delete", topic.name, "--force", typed=f"{topic.name}\n"
    )
    assert code == 0
    assert f"{topic.name}: deleted, with {told}" in shown
    assert run("topic", "delete", topic.name, "--yes").exit_code == 3


def test_delete_of_an_empty_topic_needs_no_force(run, topic):
    done = run("topic", "delete", topic.name, "--yes", "--json")

    assert json.loads(done.stdout) == {
        "topic": topic.name, "dry_run": False, "waiting": 0, "in_flight": 0, "dead": 0,
        "other_keys": 0, "batches": 0, "messages": 0,
    }  # fmt: skip


def test_a_topic_of_another_format_is_refused_and_hides_no_other(run, server, name):
    run("topic", "create", name)
    run("topic", "create", name + "x")
    with server.raw() as raw:
        raw.hset(topic_key("rmq", name), "format", "4")

    for words in (("send", name, "1"), ("peek", name), ("topic", "create", name)):
        refused = run(*words)
        assert refused.exit_code == 2
        assert refused.stderr.startswith(f"rmq: topic '{name}' has format 4, ")
    listed = run("topic", "ls", "--json")
    rows = {row["topic"]: row for row in json.loads(listed.stdout)}
    assert "has format 4" in rows[name]["error"]
    assert rows[name + "x"]["slots"] == 1
    with server.raw() as raw:  # or the lists of other tests would have its error
        raw.srem(topics_key("rmq"), name)


class TestValues:
    DURATIONS: ClassVar = {
        "1.5": 1.5, "30s": 30, "5m": 300, "2h": 7200, "1d": 86400, "500ms": 0.5, ".5s": 0.5,
        "0": 0, "1.s": 1,
    }  # fmt: skip

    @pytest.mark.parametrize("text", DURATIONS)
    def test_durations(self, text):
        assert validation.parse_duration(text) == self.DURATIONS[text]

    @pytest.mark.parametrize("text", ["", "s", "-1", "1w", "1 m s", "nan", "inf", "1e3", "1,5"])
    def test_what_is_no_duration(self, text):
        with pytest.raises(ValueError, match="is not a duration"):
            validation.parse_duration(text)

    @pytest.mark.parametrize("text", ["500ms", "1s", "90s", "2m", "3h", "1d", "1.5s", "36h"])
    def test_a_spelled_duration_reads_back(self, text):
        assert validation.parse_duration(
            validation.format_duration(validation.parse_duration(text))
        ) == validation.parse_duration(text)

    @pytest.mark.parametrize("policy", [rmq.Immediate(), rmq.Exponential(), rmq.Levels((1, 90))])
    def test_a_spelled_policy_reads_back(self, policy):
        assert retry.parse_policy(retry.describe(policy)) == policy

    @pytest.mark.parametrize("level", [None, rmq.Replicated(2, 0.25), rmq.Fsync(1, 2.0)])
    def test_a_spelled_durability_reads_back(self, level):
        assert settings.parse_durability(settings.describe_durability(level)) == level


def test_resize_says_what_it_does_and_show_says_that_it_goes_on(run, client, name):
    topic = client.topic(name, slots=2)
    topic.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(10)])

    dry = run("topic", "resize", name, "4", "--dry-run").stdout
    assert dry.startswith(f"{name}: 2 -> 4 slots; newer messages would wait for 10 messages")
    assert client.admin.settings(name).slots == 2
    begun = run("topic", "resize", name, "4", "--no-wait").stdout
    assert begun == (
        f"{name}: 2 -> 4 slots; older messages are left in 2 slots; a server (rmq server) "
        "finishes the resize, or run the command again\n"
    )
    shown = run("topic", "show", name).stdout
    assert "from 2 slots since" in shown
    assert f"rmq topic resize {name} 4" in shown
    assert json.loads(run("--json", "topic", "show", name).stdout)["resizing"]["pending"] == 2

    with topic.consumer() as consumer:
        consumer.ack(consumer.receive(10, wait=5))
        consumer.ack(consumer.receive(10, wait=0.5))
    assert run("topic", "resize", name, "4").stdout == f"{name}: 2 -> 4 slots\n"
    assert run("topic", "resize", name, "4").stdout == f"{name}: has 4 slots already\n"
    assert json.loads(run("--json", "topic", "show", name).stdout)["resizing"] is None
    refused = run("topic", "resize", name, "6")
    assert refused.exit_code == 2
    assert "a multiple or a divisor" in refused.stderr
