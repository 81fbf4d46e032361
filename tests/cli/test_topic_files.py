from __future__ import annotations

import json

import pytest

import rmq
from rmq.kernel.transport.connections.pool import Pool
from tests.cli.conftest import bury


@pytest.fixture
def defined(client, name):
    """A topic with settings and a schedule."""
    topic = client.topic(
        name,
        slots=2,
        lease=60,
        retry="levels:1s,1m:0.5",
        limit="rate:5:1m",
        timed_priority=120,
        slo="p99<2s",
        groups="order,on_dead=hold,share.gold=4",
    )
    topic.every(
        "nightly", every=3600, body={"a": "ü\x7f", "b": None}, headers={"h.1": "v"}
    ).declare()
    return topic


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_export_applied_elsewhere_makes_the_same_and_again_nothing(run, defined, tmp_path, form):
    file = tmp_path / "topics"
    file.write_text(run("topic", "export", defined.name, *form).stdout)

    dry = run("topic", "apply", file, "--dry-run", "--prefix", f"x{len(form)}")
    done = run("topic", "apply", file, "--yes", "--prefix", f"x{len(form)}")
    again = run("topic", "apply", file, "--prefix", f"x{len(form)}")

    assert dry.exit_code == done.exit_code == 0, done.stderr
    assert dry.stdout == done.stdout
    assert f"+ {defined.name}: slots 2" in done.stdout
    assert f"+ {defined.name}: schedule nightly" in done.stdout
    assert (again.exit_code, again.stdout) == (0, "nothing to change\n")
    there = run("topic", "export", defined.name, *form, "--prefix", f"x{len(form)}").stdout
    assert there == file.read_text()


def test_differences_are_shown_and_need_a_yes(run, client, defined, tmp_path):
    name, file = defined.name, tmp_path / "t.toml"
    file.write_text(
        f'[topics."{name}"]\nlease = "2m"\n'
        f'[topics."{name}".schedules.nightly]\nevery = "2h"\nbody = "7"\n'
    )

    refused = run("topic", "apply", file)
    assert (refused.exit_code, client.admin.settings(name).lease_ms) == (6, 60_000)
    done = json.loads(run("topic", "apply", file, "--yes", "--json").stdout)

    assert done["changes"][0] == f"~ {name}: lease 1m -> 2m"
    assert "every 3600.0 -> 7200.0" in done["changes"][1]
    assert client.admin.settings(name).lease_ms == 120_000
    assert client.admin.settings(name).slots == 2, "what the file does not name stays"
    (state,) = client.admin.schedules(name)
    assert (state.body, state.every.total_seconds()) == (7, 7200)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('groups = "order"', "waiting messages are already queued with or without groups"),
        ('lease = "1 parsec"', "parsec"),
        ("leese = 3", "no such setting"),
        ('slo = "p99"', "as p99<2s"),
        ('[topics."NAME".schedules.x]\nevery = "1h"\ncorn = "x"', "unknown field"),
        ("x = [", "neither TOML nor JSON"),
    ],
)
def test_fault_of_the_file_is_wrong_usage_and_changes_nothing(
    run, client, name, tmp_path, text, why
):
    client.topic(name).open()
    file = tmp_path / "t.toml"
    first = f'[topics."{name}-new"]\nslots = 2\n'
    file.write_text(f'{first}[topics."{name}"]\n{text.replace("NAME", name)}\n')

    done = run("topic", "apply", file, "--yes")

    assert (done.exit_code, why in done.stderr) == (2, True), done.stderr
    assert f"{name}-new" not in client.admin.topics()


def test_ls_filters_sorts_and_goes_on_after_a_name(run, client, name):
    for index, (waiting, dead) in enumerate(((1, 2), (3, 0), (2, 1))):
        topic = client.topic(f"{name}.{index}", max_retries=0)
        bury(topic, *["bad"] * dead)
        topic.send_many([rmq.Outgoing(n) for n in range(waiting)])

    def names(*words):
        rows = json.loads(run("topic", "ls", f"{name}.*", "--json", *words).stdout)
        return [row["topic"].removeprefix(f"{name}.") for row in rows]

    assert names() == ["0", "1", "2"]
    assert names("--sort", "waiting") == ["1", "2", "0"]
    assert names("--sort", "dead", "--limit", "2") == ["0", "2"]
    assert names("--limit", "1", "--cursor", f"{name}.0") == ["1"]
    assert f"1 of 3 topics; go on: --cursor {name}.0" in (
        run("topic", "ls", f"{name}.*", "--limit", "1").stderr
    )
    assert run("topic", "ls", "--sort", "dead", "--cursor", "a").exit_code == 2
    assert "no topic matches" in run("topic", "ls", f"{name}-none").stderr
    assert "no topic matches" in run("topic", "ls", f"{name}.*", "--cursor", f"{name}.2").stderr


def test_ls_of_many_topics_takes_few_round_trips(run, server, name, monkeypatch):
    prefix, trips = f"many-{name}", []
    with rmq.Client(server.url, prefix=prefix) as client:
        for number in range(50):
            client.topic(f"t{number:02}").open()
    exchange = Pool.exchange
    monkeypatch.setattr(Pool, "exchange", lambda *args: trips.append(1) or exchange(*args))

    seen = json.loads(run("topic", "ls", "--json", "--prefix", prefix).stdout)

    assert [row["topic"] for row in seen] == [f"t{number:02}" for number in range(50)]
    assert 0 < len(trips) < 12, "the names, two pages, and scripts that are loaded"
