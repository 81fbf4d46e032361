"""`rmq outbox resend`, `void`, `purge`, and the resend inside `rmq outbox run`."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from tests.databases import Database
from tests.forkserver import Forked
from tests.patience import wait_for
from tests.servers import Server
from tests.sql.lossy import HOUR, Lossy
from tests.sql.stubs import drain

VARIABLE = "RMQ_DATABASE_URL"
NOBODY = "0" * 26


@pytest.fixture
def scene(database: Database, server: Server, name: str) -> Iterator[Lossy]:
    made = Lossy(database, server, name)
    yield made
    made.close()


@pytest.fixture
def outbox(run: Any, scene: Lossy, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`rmq outbox` on a database of each kind."""
    monkeypatch.setenv(VARIABLE, scene.database.url())
    return lambda *words, **how: run("outbox", *words, **how)


def exhausted(scene: Lossy, **values: Any) -> str:
    id = scene.lost()
    scene.change(id, **({"status": "exhausted", "sends": 16, "notified": 1} | values))
    return id


# --- resend --------------------------------------------------------------------------------------


def test_resend_of_ids_tells_what_became_of_each_and_the_relay_sends_them(
    outbox: Any, scene: Lossy
) -> None:
    open_one, spent, done = scene.lost(), exhausted(scene), scene.lost()
    scene.change(done, status="confirmed")

    shown = outbox("resend", open_one, scene.message(spent), done, NOBODY)

    assert shown.exit_code == 4
    lines = [line.split() for line in shown.stdout.splitlines()[1:]]
    assert lines == [
        [open_one, "resent"],
        [str(scene.message(spent)), "resent"],
        [done, "refused", "it", "is", "confirmed"],
        [NOBODY, "refused", "there", "is", "no", "such", "stub"],
    ]
    assert scene.relay.run_once() == 2
    assert drain(scene.topic) == ["x", "x"]
    assert scene.status(done) == "confirmed"


def test_resend_reads_ids_from_stdin_and_prints_json(outbox: Any, scene: Lossy) -> None:
    id = exhausted(scene)

    shown = outbox("resend", "-", "--json", stdin=f"{id}\n")

    assert shown.exit_code == 0
    assert json.loads(shown.stdout) == [{"id": id, "status": "resent", "why": None}]
    assert scene.status(id) == "unconfirmed"


def test_resend_of_what_is_settled_alone_is_exit_code_3(outbox: Any, scene: Lossy) -> None:
    id = scene.lost()
    scene.change(id, status="void")

    assert outbox("resend", id).exit_code == 3
    assert scene.status(id) == "void"


def test_resend_of_all_that_are_exhausted_asks_and_counts(outbox: Any, scene: Lossy) -> None:
    mine, other = exhausted(scene), exhausted(scene, topic="other")

    dry = outbox("resend", "--exhausted", "--dry-run", "--json")
    assert json.loads(dry.stdout) == {"dry_run": True, "matched": 2}
    asked = outbox("resend", "--exhausted")
    assert (asked.exit_code, asked.stdout) == (6, "")
    assert "nobody can confirm: send 2 exhausted stubs again; nothing was done" in asked.stderr
    assert scene.status(mine) == scene.status(other) == "exhausted"

    shown = outbox("resend", "--exhausted", "--topic", scene.name, "--yes")

    assert (shown.exit_code, shown.stdout) == (0, "1 stub will be sent again\n")
    assert (scene.status(mine), scene.status(other)) == ("unconfirmed", "exhausted")
    shown = outbox("resend", "--exhausted", "--yes", "--json")
    assert json.loads(shown.stdout) == {"dry_run": False, "matched": 1, "resent": 1}
    assert outbox("resend", "--exhausted", "--yes").exit_code == 3


def test_dry_run_of_a_resend_of_ids_changes_nothing(outbox: Any, scene: Lossy) -> None:
    id, done = exhausted(scene), scene.lost()
    scene.change(done, status="confirmed")

    shown = outbox("resend", id, done, NOBODY, "--dry-run")

    assert shown.stdout == "would send 1 stub again; nothing was changed\n"
    assert shown.exit_code == 4
    assert scene.status(id) == "exhausted"


# The question comes before anything is asked of the database, so one kind of it is enough.
@pytest.mark.slow
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_name_of_the_topic_or_of_the_database_is_what_a_person_types(
    shell: Any, scene: Lossy
) -> None:
    env = {VARIABLE: scene.database.url()}
    id = exhausted(scene)
    words = ("outbox", "resend", "--exhausted", "--topic", scene.name)

    code, shown = shell.on_terminal(*words, typed="other\n", env=env)
    assert code == 6
    assert "name of the topic" in shown
    assert scene.status(id) == "exhausted"
    assert shell.on_terminal(*words, typed=f"{scene.name}\n", env=env)[0] == 0
    assert scene.status(id) == "unconfirmed"

    scene.change(id, status="void", created=0)
    database = scene.engine.url.database
    words = ("outbox", "purge", "--older-than", "0s")
    code, shown = shell.on_terminal(*words, typed=f"{scene.name}\n", env=env)
    assert code == 6
    assert "name of the database" in shown
    assert len(scene.rows()) == 1
    shell.on_terminal(*words, typed=f"{database}\n", env=env)


# --- void ----------------------------------------------------------------------------------------


def test_void_cancels_what_waits_and_tells_what_became_of_every_message(
    outbox: Any, scene: Lossy
) -> None:
    busy, dead = scene.sent("busy"), scene.sent("dead")
    consumer = scene.topic.consumer(lease=60)
    taken = {one.body: one for one in consumer.receive(2)}
    taken["dead"].reject("bad")
    waits, lost, done = scene.sent(), scene.lost(), scene.sent("done")
    unsent = scene.write()
    scene.change(done, status="confirmed")

    shown = outbox("void", waits, busy, dead, lost, unsent, done, NOBODY, "--json")

    told = {one["id"]: (one["status"], one["message"]) for one in json.loads(shown.stdout)}
    assert told == {
        waits: ("void", "cancelled"), busy: ("void", "in_flight"), dead: ("void", "dead"),
        lost: ("void", "gone"), unsent: ("void", "gone"), done: ("refused", None),
        NOBODY: ("refused", None),
    }  # fmt: skip
    assert shown.exit_code == 4
    assert (scene.place(waits), scene.place(busy), scene.place(dead)) == (None, "prepare", "dead")
    assert scene.place(done) == "store"
    assert {scene.status(id) for id in (waits, busy, dead, lost, unsent)} == {"void"}
    assert scene.relay.run_once() == 0


def test_void_is_reported_in_words(outbox: Any, scene: Lossy) -> None:
    id = scene.sent()

    shown = outbox("void", scene.message(id))

    assert shown.exit_code == 0
    assert "void" in shown.stdout
    assert "withdrawn from Redis" in shown.stdout
    assert outbox("void", NOBODY).exit_code == 3


def test_void_of_a_stub_whose_topic_is_not_in_redis_withdraws_the_stub(
    outbox: Any, scene: Lossy
) -> None:
    id = scene.write()
    scene.change(id, topic="never-created")

    shown = outbox("void", id, "--json")

    assert json.loads(shown.stdout)[0]["message"] == "gone"
    assert "never-created" not in scene.client.admin.topics()


def test_void_while_redis_is_away_withdraws_the_stub_and_says_what_it_does_not_know(
    outbox: Any, scene: Lossy
) -> None:
    id = scene.sent()

    shown = outbox("void", id, "--url", "redis://127.0.0.1:1/0")

    assert shown.exit_code == 4
    assert "Redis was not reached" in shown.stdout
    assert scene.status(id) == "void"


# --- purge ---------------------------------------------------------------------------------------


def test_purge_counts_asks_and_deletes(outbox: Any, scene: Lossy) -> None:
    ids = [scene.sent() for _ in range(3)]
    for id in ids[:2]:
        old = scene.row(id).now - 48 * HOUR
        scene.change(id, status="confirmed", created=old, sent_at=old)

    dry = outbox("purge", "--older-than", "1d", "--dry-run")
    assert dry.stdout == "would delete 2 stubs; nothing was changed\n"
    assert outbox("purge", "--older-than", "1d").exit_code == 6
    assert len(scene.rows()) == 3
    shown = outbox("purge", "--older-than", "1d", "--yes", "--json")

    assert json.loads(shown.stdout) == {"dry_run": False, "matched": 2, "purged": 2}
    assert [row.id for row in scene.rows()] == ids[2:]
    assert outbox("purge", "--older-than", "1d", "--yes").exit_code == 3


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("resend",), "give ids, or --exhausted"),
        (("resend", NOBODY, "--exhausted"), "give ids, or --exhausted"),
        (("resend", NOBODY, "--topic", "t"), "--topic: it goes with"),
        (("resend", "short"), "id: 'short'"),
        (("void", "short"), "id: 'short'"),
        (("void",), "ID..."),
        (("purge",), "--older-than"),
        (("purge", "--older-than", "soon"), "not a duration"),
        (("run", "--webhook", "ftp://s3cret"), "url: that is no URL"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_names_what_is_wrong(
    outbox: Any, words: tuple[str, ...], told: str
) -> None:
    shown = outbox(*words)

    assert shown.exit_code == 2
    assert told in shown.stderr
    assert "s3cret" not in shown.stderr


# --- run -----------------------------------------------------------------------------------------


def test_run_sends_again_what_is_lost_and_posts_what_is_exhausted(scene: Lossy) -> None:
    got: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *args: Any) -> None: ...

    receiver = HTTPServer(("127.0.0.1", 0), Handler)
    receiving = threading.Thread(target=receiver.serve_forever, daemon=True)
    receiving.start()
    lost, spent = scene.lost(), scene.lost()
    scene.change(spent, sends=3)
    env = {
        "RMQ_URL": scene.server.url, VARIABLE: scene.database.url(),
        "RMQ_OUTBOX_WEBHOOK": f"http://127.0.0.1:{receiver.server_port}/",
    }  # fmt: skip
    process = Forked(
        "tests.cli.command", "outbox", "run", "--max-sends", "3", env=env, stderr=subprocess.PIPE
    )
    try:
        wait_for(lambda: scene.row(lost).sends == 2 and got)
    finally:
        process.terminate()
        _, err = process.communicate(timeout=90)
        receiver.shutdown()
        receiver.server_close()
        receiving.join()

    assert process.returncode == 0, err
    assert scene.place(lost) == "store"
    assert [(one["id"], one["sends"]) for one in got] == [(spent, 3)]
