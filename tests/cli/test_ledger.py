"""`rmq ledger`: the table, a look, a purge; and no password in any output."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import sqlalchemy as sa

from rmq.ledger import Ledger, metadata
from tests.databases import PASSWORD, Database
from tests.sql.ledgers import Copy

VARIABLE = "RMQ_DATABASE_URL"
SECRET = "hunter2-hunter2"


@pytest.fixture
def ledger(run: Any, database: Database, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`rmq ledger` on a database of each kind."""
    monkeypatch.setenv(VARIABLE, database.url())
    return lambda *words, **env: run("ledger", *words, **env)


def work(database: Database, key: str, state: str = "consumed") -> None:
    store = Ledger(database.engine(), hold=60)
    guard = store.guard(lambda one: key, 60_000, None)
    row: Any = Copy(key, topic="payments", fence=7)
    if state == "consumed":
        guard.run(row, lambda: None)
        store.close()
        return
    guard._give_up = lambda row: iter(())  # type: ignore[attr-defined]  # as after a crash
    with pytest.raises(KeyError):
        guard.run(row, lambda: {}["crash"])
    store.close()


def test_create_makes_the_table_once(ledger: Any, database: Database) -> None:
    first, second = ledger("create"), ledger("create", "--json")

    assert (first.exit_code, first.stdout) == (0, "rmq_ledger: created\n")
    assert json.loads(second.stdout) == [{"table": "rmq_ledger", "created": False}]
    assert sa.inspect(database.engine()).has_table("rmq_ledger")


@pytest.mark.parametrize("way", ["text", "json"])
def test_the_sql_of_create_makes_the_same_table(ledger: Any, database: Database, way: str) -> None:
    shown = ledger("create", "--sql", *(["--json"] if way == "json" else []))
    told = json.loads(shown.stdout)["sql"] if way == "json" else shown.stdout.split(";\n\n")
    engine = database.engine()
    assert sa.inspect(engine).get_table_names() == []

    with engine.begin() as connection:
        for one in filter(None, told):
            connection.exec_driver_sql(one)

    found = {one["name"] for one in sa.inspect(engine).get_columns("rmq_ledger")}
    assert found == {one.name for one in metadata.tables["rmq_ledger"].columns}
    work(database, "k")
    assert ledger("show", "payments", "k").exit_code == 0


def test_create_tells_what_an_older_table_lacks(ledger: Any, database: Database) -> None:
    with database.engine().begin() as connection:
        connection.exec_driver_sql("CREATE TABLE rmq_ledger (consumer INT, topic INT)")

    shown = ledger("create")

    assert shown.exit_code == 2
    assert "rmq_ledger is there and lacks key, state, owner, expires, created" in shown.stderr


def test_show_tells_state_message_and_time(ledger: Any, database: Database) -> None:
    ledger("create")
    work(database, "Grün 17")
    work(database, "crashed", "consuming")

    shown, told = (
        ledger("show", "payments", "Grün 17"),
        ledger("show", "payments", "crashed", "--json"),
    )

    assert [line.split()[0] for line in shown.stdout.splitlines()] == [
        "key", "consumer", "state", "message", "delivery", "since", "kept",
    ]  # fmt: skip
    assert "consumed" in shown.stdout
    found = json.loads(told.stdout)
    assert (found["state"], found["message_id"], found["delivery"]) == ("consuming", "m1", 7)
    assert 30 < found["left_s"] <= 60
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT[\d:]{8}\.\d{3}Z", found["since"])


def test_show_of_nothing_is_exit_code_3(ledger: Any) -> None:
    ledger("create")

    shown = ledger("show", "payments", "k")

    assert (shown.exit_code, shown.stdout) == (3, "")
    assert "the ledger has no key 'k' of topic 'payments' and consumer 'default'" in shown.stderr


def test_purge_removes_what_is_old(ledger: Any, database: Database) -> None:
    ledger("create")
    for key in "abc":
        work(database, key)
    assert ledger("purge", "--older-than", "1ms").exit_code == 3  # their ttl has not passed

    with database.engine().begin() as connection:
        connection.exec_driver_sql(
            "UPDATE rmq_ledger SET expires = created, created = created - 10"
        )
    kept = ledger("purge", "--older-than", "1h", "--json")
    removed = ledger("purge", "--older-than", "1ms")

    assert (kept.exit_code, json.loads(kept.stdout)) == (3, {"removed": 0})
    assert (removed.exit_code, removed.stdout) == (0, "removed 3 rows\n")


@pytest.mark.parametrize("words", [("show", "t", "k"), ("purge", "--older-than", "1d")])
def test_without_the_table_the_command_that_makes_it_is_reported(ledger: Any, words: Any) -> None:
    shown = ledger(*words)

    assert (shown.exit_code, shown.stdout) == (2, "")
    assert "run `rmq ledger create`" in shown.stderr


def test_the_url_of_an_async_program_is_taken(run: Any, database: Database) -> None:
    shown = run("ledger", "create", **{VARIABLE: database.url("async")})

    assert (shown.exit_code, shown.stdout) == (0, "rmq_ledger: created\n")


# --- which database, and its password ------------------------------------------------------------


def test_without_a_database_the_variable_is_reported(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)

    shown = run("ledger", "create")

    assert shown.exit_code == 2
    assert "which database? Set RMQ_DATABASE_URL, or give --database" in shown.stderr


@pytest.mark.parametrize("place", [":{secret}@h/x", "@h/x?password={secret}"])
def test_a_password_in_the_arguments_is_refused(run: Any, place: str) -> None:
    url = "postgresql+psycopg://u" + place.format(secret=SECRET)

    for words in (("--database", url), ("--database", url, "--sql"), (url,)):
        shown = run("ledger", "create", *words, RMQ_DEBUG="1")
        assert shown.exit_code == 2
        assert SECRET not in shown.output
    assert "set RMQ_DATABASE_URL" in run("ledger", "create", "--database", url).stderr


WRONG = {
    f"nonsense {SECRET}": 2,
    f"postgresql://u:{SECRET}@h:port/x": 2,
    f"oracle://u:{SECRET}@h/x": 2,
    f"postgresql+pg8000://u:{SECRET}@127.0.0.1/x": 2,
    f"postgresql+psycopg://u:{SECRET}@127.0.0.1:1/x": 5,
    f"postgresql+psycopg://u@127.0.0.1:1/x?password={SECRET}": 5,
    f"postgresql+psycopg://u:{SECRET}@127.0.0.1:1/x?{SECRET}=1": 5,
    f"mysql+pymysql://u:{SECRET}@127.0.0.1:1/x": 5,
    f"mysql+pymysql://u:{SECRET}@127.0.0.1:1/x?charset=nonsense": 5,
    "sqlite:////nowhere/at/all": 5,
}


@pytest.mark.parametrize("debug", ["0", "1"])
@pytest.mark.parametrize("url", WRONG, ids=lambda url: url.replace(SECRET, "s")[:40])
def test_no_output_shows_the_password_of_a_wrong_url(run: Any, url: str, debug: str) -> None:
    for words in (("create",), ("create", "--json"), ("show", "t", "k")):
        shown = run("ledger", *words, **{VARIABLE: url, "RMQ_DEBUG": debug})

        assert shown.exit_code == WRONG[url], shown.output
        assert SECRET not in shown.output
        assert "database" in shown.stderr


@pytest.mark.slow
@pytest.mark.parametrize("database", ["postgresql", "mariadb"], indirect=True)
def test_a_refused_login_is_exit_code_5_and_shows_no_password(run: Any, database: Database) -> None:
    url = database.url().replace(PASSWORD, SECRET)

    shown = run("ledger", "create", **{VARIABLE: url, "RMQ_DEBUG": "1"})

    assert shown.exit_code == 5
    assert SECRET not in shown.output
    assert "rmq" in shown.stderr


def test_without_sqlalchemy_the_extra_is_reported_and_other_commands_work(
    shell: Any, tmp_path: Any
) -> None:
    (tmp_path / "sqlalchemy.py").write_text("raise ImportError('not here')")
    env = {"PYTHONPATH": str(tmp_path), VARIABLE: "sqlite://"}

    for words in (("create",), ("show", "t", "k"), ("purge", "--older-than", "1d")):
        shown = shell.from_start("ledger", *words, env=env)
        assert shown.returncode == 2
        assert 'sqlalchemy is not installed; pip install ".[sql]"' in shown.stderr
    assert shell.from_start("ping", env=env).returncode == 0
    assert shell.from_start("ledger", "create", "--help", env=env).returncode == 0
