"""Several relays: they share the work, keep the order of each basis, and may die at any point."""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from subprocess import PIPE

import pytest
import sqlalchemy as sa

import rmq
from rmq.outbox import Outbox, Relay, Resender, Round
from rmq.sql.outbox import dispatch, relay_queries as sql
from rmq.sql.outbox.tables import stubs
from tests.forkserver import Forked
from tests.patience import wait_for
from tests.sql.stubs import drain, prepared, rows


@pytest.fixture
def sharing(database):
    """A database whose locks are on rows."""
    if database.dialect == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    return database


@contextlib.contextmanager
def child(database, server, batch=50, *dies):
    words = [database.url(), server.url, str(batch), *dies]
    process = Forked("tests.sql.outbox_child", *words, stdin=PIPE, stdout=PIPE, stderr=2)
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.stdin.close()
        process.wait(90)


def left(engine):
    with engine.connect() as connection:
        return connection.execute(sa.text("SELECT count(*) FROM rmq_stub WHERE sends = 0")).scalar()


def wait_until_sent(engine, seconds=120.0):
    wait_for(lambda: not left(engine), lambda: f"{left(engine)} are still unsent", seconds)


# --- what is locked -----------------------------------------------------------------------------


@contextlib.contextmanager
def another_relay_holds(engine, seqs):
    """A transaction of another relay that has locked these stubs and not yet marked them."""
    engine = engine.execution_options(isolation_level="READ COMMITTED")
    with engine.connect() as connection, connection.begin() as transaction:
        # MariaDB reads a small table through any index, and locks what it passes.
        hint = "FORCE INDEX (PRIMARY)" if engine.dialect.name == "mysql" else ""
        query = sa.text(f"SELECT seq FROM rmq_stub {hint} WHERE seq IN :seqs FOR UPDATE")
        locked = connection.execute(query.bindparams(sa.bindparam("seqs", seqs, expanding=True)))
        assert len(locked.all()) == len(seqs)
        yield
        transaction.rollback()


def fill(engine, outbox, topic, lines):
    """A stub for each (basis, number); their seqs."""
    with engine.begin() as connection:
        for basis, number in lines:
            outbox.send(connection, topic, [basis, number], slot_basis=basis)
    return [row.seq for row in rows(engine)]


def test_a_relay_passes_over_what_another_has_locked(sharing, client, name):
    engine, outbox = prepared(sharing), Outbox()
    seqs = fill(engine, outbox, name, [(None, n) for n in range(6)])
    relay = Relay(outbox, engine, client)

    with another_relay_holds(engine, seqs[:3]):
        assert relay.run_once() == 3
    assert [body[1] for body in drain(client.topic(name))] == [3, 4, 5]
    assert relay.run_once() == 3


def test_what_follows_a_locked_stub_of_its_basis_waits(sharing, client, name):
    engine, outbox = prepared(sharing), Outbox()
    lines = [("a", 1), ("a", 2), ("b", 1), ("a", 3), (None, 1), ("b", 2)]
    seqs = fill(engine, outbox, name, lines)
    relay = Relay(outbox, engine, client)

    with another_relay_holds(engine, seqs[:1]):
        assert relay.run_once() == 3
        assert drain(client.topic(name)) == [["b", 1], [None, 1], ["b", 2]]
    assert relay.run_once() == 3
    assert drain(client.topic(name)) == [["a", 1], ["a", 2], ["a", 3]]


def test_a_gap_in_the_middle_of_a_basis_ends_what_may_be_taken_of_it(sharing, client, name):
    engine, outbox = prepared(sharing), Outbox()
    seqs = fill(engine, outbox, name, [("a", n) for n in range(5)])
    relay = Relay(outbox, engine, client)

    with another_relay_holds(engine, seqs[2:3]):
        assert relay.run_once() == 2
        assert relay.run_once() == 0
    assert relay.run_once() == 3
    assert [body[1] for body in drain(client.topic(name))] == [0, 1, 2, 3, 4]


def test_the_same_basis_of_another_topic_waits_for_nobody(sharing, client, name):
    engine, outbox = prepared(sharing), Outbox()
    (first,) = fill(engine, outbox, f"{name}-x", [("a", 1)])
    fill(engine, outbox, f"{name}-y", [("a", 1)])

    with another_relay_holds(engine, [first]):
        assert Relay(outbox, engine, client).run_once() == 1


def test_without_that_rule_a_follower_would_overtake(sharing, client, name, monkeypatch):
    """The control of the tests above: they see a relay that looks at locks alone."""
    monkeypatch.setattr(sql, "_sendable", lambda connection, found, but: list(found))
    engine, outbox = prepared(sharing), Outbox()
    seqs = fill(engine, outbox, name, [("a", 1), ("a", 2)])
    relay = Relay(outbox, engine, client)

    with another_relay_holds(engine, seqs[:1]):
        relay.run_once()
    relay.run_once()

    assert drain(client.topic(name)) == [["a", 2], ["a", 1]]


def test_producers_write_while_a_relay_holds_its_locks(sharing, client, name):
    engine, outbox = prepared(sharing), Outbox()
    fill(engine, outbox, name, [(None, n) for n in range(10)])
    relay = Relay(outbox, engine, client)
    sent = relay._dispatcher.send

    def meanwhile(*what):
        # Rows before, between and after those that are locked: nothing in them may be.
        with engine.begin() as connection:
            connection.execute(sa.text(_TIMEOUT[sharing.dialect]))
            for number in range(10):
                outbox.send(connection, name, [None, 10 + number])
        return sent(*what)

    relay._dispatcher.send = meanwhile
    assert relay.run_once() == 10
    relay._dispatcher.send = sent
    assert relay.run_once() == 10


_TIMEOUT = {
    "postgresql": "SET LOCAL lock_timeout = '2s'",
    "mariadb": "SET SESSION innodb_lock_wait_timeout = 2",
}


# --- limits of idle transactions ----------------------------------------------------------------


@pytest.mark.parametrize("kind", [Relay, Resender])
def test_what_a_frozen_process_has_locked_is_free_after_the_limit(
    sharing, server, name, monkeypatch, kind
):
    engine, outbox = prepared(sharing), Outbox()
    fill(engine, outbox, name, [("a", 1)])
    if kind is Resender:
        with engine.begin() as connection:
            connection.execute(sa.update(stubs).values(sends=1, slot=0, offset=1, resend_at=0))
    frozen, thaw, errors = threading.Event(), threading.Event(), []
    with rmq.Client(server.url, retry_for=0) as client:
        with monkeypatch.context() as patch:
            patch.setattr(dispatch, "IDLE_S", 1.0)
            freezing = kind(outbox, sharing.engine(), client)
        send = freezing._dispatcher.send

        def freeze(*args):
            frozen.set()
            assert thaw.wait(120)
            return send(*args)

        def run():
            while not frozen.is_set():  # a busy machine may be over the limit before
                try:
                    freezing.run_once()
                except sa.exc.SQLAlchemyError as error:
                    errors.append(error)

        freezing._dispatcher.send = freeze
        thread = threading.Thread(target=run)
        thread.start()
        try:
            assert frozen.wait(60)
            wait_for(lambda: kind(outbox, engine, client).run_once() in (1, Round(sent=1)))
        finally:
            thaw.set()
            thread.join(60)

        assert errors  # its transaction was rolled back; it has marked nothing
        assert [row.sends for row in rows(engine)] == [1 if kind is Relay else 2]
        assert drain(client.topic(name)) == [["a", 1]]


def test_a_call_that_waits_for_replicas_longer_than_the_limit_is_marked(
    sharing, server, name, monkeypatch
):
    engine, outbox = prepared(sharing), Outbox()
    monkeypatch.setattr(dispatch, "IDLE_S", 1.0)
    with rmq.Client(server.url, retry_for=0) as client:
        client.topic(name, durability=rmq.Replicated(1, 3.0)).open()  # and there is no replica
        relay = Relay(outbox, engine, client)
        monkeypatch.setattr(dispatch, "IDLE_S", 60.0)  # of the call, on a busy machine
        fill(engine, outbox, name, [("a", 1)])

        def sends():
            with contextlib.suppress(sa.exc.SQLAlchemyError):  # a busy machine
                return relay.run_once()

        wait_for(sends)


def test_the_limit_is_gone_from_the_connection_when_a_turn_is_over(sharing, client, name):
    prepared(sharing)
    engine, outbox = sharing.engine(pool_size=1, max_overflow=0), Outbox()
    fill(engine, outbox, name, [("a", 1)])
    question = sa.text(_IDLE[sharing.dialect])
    relay = Relay(outbox, engine, client)
    limits = []
    send = relay._dispatcher.send

    def ask(stubs, now, connection):
        limits.append(connection.execute(question).scalar())
        return send(stubs, now, connection)

    relay._dispatcher.send = ask
    with engine.connect() as connection:
        before = connection.execute(question).scalar()
    assert relay.run_once() == 1
    with engine.connect() as connection:
        after = connection.execute(question).scalar()

    assert before == after
    assert limits == ["12s" if sharing.dialect == "postgresql" else 12]  # 2 of it the client's


_IDLE = {
    "postgresql": "SELECT current_setting('idle_in_transaction_session_timeout')",
    "mariadb": "SELECT @@SESSION.idle_transaction_timeout",
}


# --- processes ----------------------------------------------------------------------------------

BASES, EACH, PRODUCERS = 8, 60, 4


def test_two_relay_processes_share_the_work_and_keep_the_order_of_each_basis(
    database, server, client, name
):
    engine, outbox = prepared(database), Outbox()
    topic = client.topic(name, slots=4)
    topic.open()
    trouble = []

    def produce(number):
        try:
            for turn in range(EACH):
                for basis in range(number, BASES, PRODUCERS):
                    with engine.begin() as connection:
                        outbox.send(connection, name, [basis, turn], slot_basis=f"basis:{basis}")
                        outbox.send(connection, name, [None, turn])
        except Exception as error:
            trouble.append(error)

    count = PRODUCERS if database.dialect != "sqlite" else 1
    step = PRODUCERS // count
    with child(database, server, 7) as one, child(database, server, 7) as two:
        producers = [
            threading.Thread(target=lambda n=n: [produce(n + k) for k in range(step)])
            for n in range(count)
        ]
        for thread in producers:
            thread.start()
        for thread in producers:
            thread.join()
        wait_until_sent(engine)
    turns = [sum(map(int, process.stdout.read().split())) for process in (one, two)]

    assert trouble == []
    total = BASES * EACH * 2
    assert sum(turns) == total
    if database.dialect != "sqlite":  # whose one lock goes to whoever asks at the right moment
        assert min(turns) > 0, turns  # how much each gets is up to the machine
    by_basis = collections.defaultdict(list)
    for basis, turn in drain(topic):
        by_basis[basis].append(turn)
    assert sorted(by_basis.pop(None)) == sorted(list(range(EACH)) * BASES)
    assert by_basis == {basis: list(range(EACH)) for basis in range(BASES)}
    assert {(row.status, row.sends) for row in rows(engine)} == {("unconfirmed", 1)}


@pytest.mark.fault("F23")
def test_a_relay_killed_between_send_and_mark_loses_and_repeats_nothing(
    database, server, client, name
):
    engine, outbox = prepared(database), Outbox()
    fill(engine, outbox, name, [(f"b{n % 3}", n) for n in range(200)])

    with child(database, server, 50, "dies") as dying:
        dying.wait(90)
    assert dying.returncode == -9
    assert client.admin.stats(name)["priority"] == 50  # it had sent them
    assert left(engine) == 200
    with child(database, server, 50):
        wait_until_sent(engine)

    assert [body[1] for body in drain(client.topic(name))] == list(range(200))
    assert {row.sends for row in rows(engine)} == {1}
    assert client.admin.stats(name)["accepted"] == 200


@pytest.mark.slow
def test_relays_that_are_killed_again_and_again_lose_and_repeat_nothing(
    database, server, client, name
):
    engine, outbox = prepared(database), Outbox()
    topic = client.topic(name)
    fill(engine, outbox, name, [("one", n) for n in range(3000)])

    kills = 0
    while left(engine) and kills < 6:
        with child(database, server, 40) as process:
            time.sleep(0.05 * (1 + kills % 3))
            process.kill()
            kills += 1
    with child(database, server, 500):
        wait_until_sent(engine)

    assert kills >= 2
    assert [body[1] for body in drain(topic)] == list(range(3000))
    assert rmq.Client(server.url).admin.stats(name)["accepted"] == 3000
