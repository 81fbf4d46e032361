from __future__ import annotations

import json

import pytest

import rmq
from rmq.features.doctor.flows import NAMES
from tests.conftest import any_binary
from tests.servers import Server


@pytest.fixture(scope="module")
def sound():
    server = Server(any_binary(), "--maxmemory", "1gb", aof=True)
    yield server
    server.stop()


def test_sound_server_is_exit_code_0_and_lines_are_80_wide(run, sound):
    done = run("doctor", "--all", "--url", sound.url)
    short = run("doctor", "--url", sound.url)

    assert done.exit_code == 0, done.stdout
    assert short.stdout.startswith("no problems\n")
    assert max(map(len, done.stdout.splitlines())) <= 80
    for name in NAMES:
        assert f"\n{name} " in f"\n{done.stdout}"


def test_warnings_are_exit_code_4_and_errors_1(run, sound):
    with sound.raw() as raw:
        raw.config_set("appendfsync", "no")
        warned = run("doctor", "--url", sound.url)
        raw.config_set("maxmemory-policy", "allkeys-lru")
        failed = run("doctor", "--url", sound.url)
        raw.config_set("maxmemory-policy", "noeviction")
        raw.config_set("appendfsync", "always")

    assert (warned.exit_code, failed.exit_code) == (4, 1)
    assert "\n                           -> CONFIG SET appendfsync everysec\n" in warned.stdout
    assert "maxmemory-policy  error    allkeys-lru: " in failed.stdout


def test_only_makes_checks_that_are_named_and_json_has_all_of_a_finding(run, sound):
    told = json.loads(
        run("doctor", "--only", "clock", "--only", "topics", "--json", "--url", sound.url).stdout
    )

    assert told["worst"] == "ok"
    assert [each["check"] for each in told["findings"]] == ["topics", "clock"]
    assert set(told["findings"][0]) == set(rmq.Finding._fields)
    assert run("doctor", "--only", "weather").exit_code == 2


def test_list_asks_no_redis(run):
    url = "redis://127.0.0.1:1/0"

    listed = run("doctor", "--list", "--url", url)
    told = json.loads(run("doctor", "--list", "--json", "--url", url).stdout)

    assert [line.split()[0] for line in listed.stdout.splitlines()] == list(NAMES)
    assert [each["check"] for each in told] == list(NAMES)
    assert run("doctor", "--url", url).exit_code == 5
