"""`rmq outbox`: create, run, status, ls, on SQLite; `run` on a real database, too."""

from __future__ import annotations

import json
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import rmq
from rmq.outbox import Outbox, Relay, metadata
from rmq.sql.outbox.tables import logs, stubs
from tests.cli.conftest import Shell, ndjson
from tests.databases import Database
from tests.patience import wait_for


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a database that is named by the environment."""
    url = f"sqlite:///{tmp_path}/shop.sqlite"
    monkeypatch.setenv("RMQ_DATABASE_URL", url)
    return url


@pytest.fixture
def engine(place: str) -> Iterator[sa.Engine]:
    made = sa.create_engine(place)
    metadata.create_all(made)
    yield made
    made.dispose()


def fill(engine: sa.Engine, topic: str, *bodies: Any, **how: Any) -> list[str]:
    with engine.begin() as connection:
        return [str(Outbox().send(connection, topic, body, **how)) for body in bodies]


def test_create_makes_both_tables_once(run: Any, place: str) -> None:
    first, second = run("outbox", "create"), run("outbox", "create", "--json")

    assert first.stdout.splitlines() == ["rmq_log: created", "rmq_stub: created"]
    assert {one["table"]: one["created"] for one in json.loads(second.stdout)} == {
        "rmq_log": False, "rmq_stub": False,
    }  # fmt: skip
    assert run("outbox", "status").exit_code == 0


@pytest.mark.parametrize("dialect", ["postgresql+psycopg", "mysql+pymysql", "sqlite"])
def test_create_prints_sql_and_connects_to_nothing(run: Any, dialect: str) -> None:
    told = run("outbox", "create", "--sql", "--database", f"{dialect}://")

    assert told.exit_code == 0
    assert told.stdout.count("CREATE TABLE") == 2
    assert "CREATE INDEX rmq_stub_unsent" in told.stdout


@pytest.mark.parametrize("command", ["create", "run", "status", "ls"])
def test_a_password_in_the_arguments_is_refused_and_not_repeated(run: Any, command: str) -> None:
    told = run("outbox", command, "--database", "postgresql://me:s3cretword@localhost/shop")

    assert told.exit_code == 2
    assert "RMQ_DATABASE_URL" in told.stderr
    assert "s3cretword" not in told.output


@pytest.mark.parametrize("command", ["create", "run", "status", "ls"])
def test_a_database_that_is_not_there_is_reported_without_its_password(
    run: Any, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RMQ_DATABASE_URL", "postgresql+psycopg://me:s3cretword@127.0.0.1:1/shop")

    told = run("outbox", command)

    assert told.exit_code == 5
    assert "127.0.0.1:1" in told.stderr
    assert "s3cretword" not in told.output


@pytest.mark.parametrize("command", ["run", "status", "ls"])
def test_missing_tables_are_reported_with_the_command_that_creates_them(
    run: Any, place: str, command: str
) -> None:
    told = run("outbox", command)

    assert told.exit_code == 2
    assert "rmq outbox create" in told.stderr


def test_no_database_at_all_is_asked_for(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RMQ_DATABASE_URL", raising=False)

    told = run("outbox", "status")

    assert told.exit_code == 2
    assert "RMQ_DATABASE_URL" in told.stderr


def test_status_counts_each_state(run: Any, engine: sa.Engine, client: Any, name: str) -> None:
    fill(engine, name, 1, 2)
    fill(engine, name, 3, confirm=False)
    Relay(Outbox(), engine, client).run_once()
    fill(engine, name, 4, 5, 6)
    with engine.begin() as connection:
        for body, status in ((b"5", "void"), (b"6", "exhausted")):
            connection.execute(sa.update(stubs).where(stubs.c.body == body).values(status=status))

    told = json.loads(run("outbox", "status", "--json").stdout)
    lines = dict(line.split(None, 1) for line in run("outbox", "status").stdout.splitlines()[:5])

    counts = {"unsent": 1, "unconfirmed": 2, "confirmed": 1, "void": 1, "exhausted": 1}
    assert {key: told[key] for key in counts} == counts
    assert {key: int(value) for key, value in lines.items()} == counts
    assert 0 <= told["oldest_unsent_ms"] < 60_000
    assert told["next_resend"].startswith("20")


def test_status_says_that_a_resend_is_overdue_unless_a_consumer_has_the_message(
    run: Any, engine: sa.Engine, client: Any, name: str
) -> None:
    fill(engine, name, 1, 2)
    Relay(Outbox(), engine, client).run_once()
    with engine.begin() as connection:
        connection.execute(sa.update(stubs).values(resend_at=stubs.c.resend_at - 600_000))

    overdue = run("outbox", "status").stdout
    with engine.begin() as connection:
        rows = sa.select(stubs.c.id, stubs.c.topic, stubs.c.slot, stubs.c.offset, stubs.c.sent_at)
        names = ["id", "topic", "slot", "offset", "received"]
        connection.execute(sa.insert(logs).from_select(names, rows))
    told = json.loads(run("outbox", "status", "--json").stdout)

    assert "overdue for 9m" in overdue
    assert (told["in_log"], told["next_resend"], told["overdue_ms"]) == (2, None, 0)


def test_status_of_an_empty_outbox(run: Any, engine: sa.Engine) -> None:
    told = json.loads(run("outbox", "status", "--json").stdout)

    assert (told["unsent"], told["oldest_unsent_ms"], told["next_resend"]) == (0, None, None)
    assert run("outbox", "ls").exit_code == 0


def test_ls_filters_and_limits(run: Any, engine: sa.Engine, client: Any, name: str) -> None:
    sent = fill(engine, name, {"é": 1}, slot_basis="a", delay=3600)
    Relay(Outbox(), engine, client).run_once()
    unsent = fill(engine, f"{name}-other", b"\xff", "two", "three", codec="msgpack")

    def ids(*words: str) -> list[str]:
        return [one["id"] for one in ndjson(run("outbox", "ls", "--json", *words).stdout)]

    assert ids() == sent + unsent
    assert ids("--status", "unsent") == unsent
    assert ids("--status", "unconfirmed") == sent
    assert ids("--status", "unsent", "--status", "unconfirmed", "--limit", "2") == [
        *sent,
        unsent[0],
    ]
    assert ids("--topic", name) == sent
    assert run("outbox", "ls", "--status", "void").exit_code == 3
    assert run("outbox", "ls", "--limit", "0").exit_code == 2
    (told,) = ndjson(run("outbox", "ls", "--json", "--topic", name).stdout)
    assert (told["body"], told["slot_basis"], told["sends"]) == ({"é": 1}, "a", 1)
    assert told["due"] > told["created"]
    table = run("outbox", "ls").stdout.splitlines()
    assert table[0].split() == [
        "ID", "TOPIC", "STATUS", "SENDS", "CREATED", "RESEND-AT", "BODY",
    ]  # fmt: skip
    assert [line.split()[0] for line in table[1:]] == sent + unsent
    assert len({line.index(" un") for line in table[1:]}) == 1, "one column"


def test_ls_shows_why_a_stub_is_exhausted_and_steers_no_terminal(
    run: Any, engine: sa.Engine, name: str
) -> None:
    fill(engine, name, "\x1b[31mred")
    with engine.begin() as connection:
        connection.execute(sa.update(stubs).values(status="exhausted", error="too \x1b[2J large"))

    told = run("outbox", "ls", "--status", "exhausted")

    assert "\x1b" not in told.stdout
    assert "too \\x1b[2J large" in told.stdout


def test_run_sends_until_it_is_told_to_stop(
    database: Database, shell: Shell, client: rmq.Client, name: str
) -> None:
    engine = database.engine()
    metadata.create_all(engine)
    shell.env["RMQ_DATABASE_URL"] = database.url()
    topic = client.topic(name)
    topic.open()
    fill(engine, name, 1)
    process = shell.start("outbox", "run", "--log-json", stderr=-1)
    try:
        with topic.consumer() as consumer:
            assert [d.body for d in consumer.receive(wait=20)] == [1]
            fill(engine, name, 2)
            assert [d.body for d in consumer.receive(wait=20)] == [2]
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=90)
    finally:
        process.kill()

    assert process.returncode == 0
    assert b"the relay ends; 2 sent" in told
    assert b"Traceback" not in told
    assert database.url().encode() not in told


def test_run_creates_topics_as_the_program_declares_them(
    engine: sa.Engine, shell: Shell, client: rmq.Client, name: str, tmp_path: Path
) -> None:
    module = f"shop_{uuid.uuid4().hex}"
    text = f"import rmq\nclient = rmq.Client()\nclient.topic({name!r}, slots=8)\n"
    (tmp_path / f"{module}.py").write_text(text)
    fill(engine, name, 1)
    process = shell.start("outbox", "run", "--app", module, stderr=-1, cwd=tmp_path)
    try:
        wait_for(lambda: name in client.admin.topics())
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=90)
    finally:
        process.kill()

    assert process.returncode == 0
    assert client.admin.settings(name).slots == 8


def test_run_refuses_an_app_that_is_not_there(run: Any, place: str) -> None:
    told = run("outbox", "run", "--app", "no_such_shop")

    assert told.exit_code == 1
    assert "no_such_shop" in told.stderr


def test_run_waits_for_a_redis_that_is_away_and_ends_meanwhile_when_told(
    engine: sa.Engine, shell: Shell, name: str
) -> None:
    fill(engine, name, 1)
    shell.env["RMQ_URL"] = "redis://127.0.0.1:1/0"
    process = shell.start("outbox", "run", stderr=-1)
    try:
        line = b""
        while b"Redis is away" not in line:
            assert process.stderr is not None
            line = process.stderr.readline()
            assert line, "it ended"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=90)
    finally:
        process.kill()

    assert process.returncode == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--batch", "0"), "batch"),
        (("--max-sends", "0"), "max_sends"),
        (("--resend", "immediate"), "resend"),
        (("--resend", "soon"), "policy"),
    ],
)
def test_run_refuses_a_policy_that_cannot_work(
    run: Any, engine: sa.Engine, words: tuple[str, str], says: str
) -> None:
    told = run("outbox", "run", *words)

    assert told.exit_code == 2
    assert says in told.stderr
