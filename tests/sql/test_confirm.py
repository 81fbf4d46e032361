"""The consumer's half: noted on receipt, confirmed on success, forgotten on failure."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

import rmq
from rmq.ledger import Ledger, exactly_once
from rmq.outbox import Outbox, Round, metadata
from rmq.sql.database import now_ms
from rmq.sql.outbox import confirm_queries
from rmq.sql.outbox.tables import logs, stubs
from tests.databases import Database
from tests.patience import wait_for
from tests.servers import Server
from tests.sql.consuming import Consuming, scene
from tests.sql.lossy import HOUR

__all__ = ["scene"]  # a fixture


class Boom(Exception):
    """The error with which a handler fails."""


# --- success -------------------------------------------------------------------------------------


def test_stub_is_confirmed_when_its_handler_has_returned_and_not_before(scene: Consuming) -> None:
    id = scene.sent({"n": 1})
    seen = []
    scene.consume(
        lambda body, d: seen.append((body, scene.status(id), scene.logged())), scene.confirms()
    )

    scene.work(lambda: scene.status(id) == "confirmed")

    assert seen == [({"n": 1}, "unconfirmed", [id])]
    assert scene.logged() == []
    assert scene.round() == Round()


def test_log_row_tells_topic_slot_offset_and_when_by_the_databases_clock(scene: Consuming) -> None:
    scene.topic.send("before")
    id = scene.sent("mine")
    found = []

    def look(body: Any, d: Any) -> None:
        if body == "mine":
            with scene.engine.connect() as connection:
                found.append(connection.execute(sa.select(logs, now_ms().label("now"))).one())

    scene.consume(look, scene.confirms(), concurrency=1)
    scene.work(lambda: scene.status(id) == "confirmed")

    (row,) = found
    assert (row.id, row.topic, row.slot, row.offset) == (id, scene.name, 0, 2)
    assert row.now - 10_000 < row.received <= row.now


def test_message_without_a_stub_passes_untouched(scene: Consuming) -> None:
    seen = []
    scene.consume(lambda body, d: seen.append((body, scene.logged())), scene.confirms())
    scene.topic.send("direct")

    scene.work(lambda: seen)

    assert seen == [("direct", [])]
    assert scene.rows() == []


def test_stub_that_is_exhausted_is_confirmed_by_a_late_success(scene: Consuming) -> None:
    id = scene.sent()
    scene.change(id, status="exhausted", notified=1)
    scene.consume(lambda body, d: None, scene.confirms())

    scene.work(lambda: scene.status(id) == "confirmed")


@pytest.mark.parametrize("status", ["void", "confirmed"])
def test_stub_that_is_void_or_confirmed_stays_so(scene: Consuming, status: str) -> None:
    id = scene.sent()
    scene.change(id, status=status)
    seen: list[Any] = []
    scene.consume(lambda body, d: seen.append(body), scene.confirms())

    scene.work(lambda: seen)

    assert scene.status(id) == status
    assert scene.logged() == []


# --- failure -------------------------------------------------------------------------------------


def fails(body: Any, d: Any) -> None:
    raise Boom("bad luck")


def snoozes(body: Any, d: Any) -> None:
    raise rmq.Snooze(600)


def rejects(body: Any, d: Any) -> None:
    raise rmq.Reject("never")


@pytest.mark.parametrize(
    ("work", "place", "reason"),
    [(fails, "store", "failed"), (snoozes, "store", None), (rejects, "dead", "rejected")],
)
def test_handler_that_does_not_succeed_removes_its_log_row_and_its_error_goes_on(
    scene: Consuming, work: Any, place: str, reason: str | None
) -> None:
    id = scene.sent()
    seen: list[list[str]] = []

    def wrapped(body: Any, d: Any) -> None:
        seen.append(scene.logged())
        work(body, d)

    scene.consume(wrapped, scene.confirms(), retry=rmq.Exponential(600, 600, jitter=0))
    scene.work(lambda: seen and scene.place(id) == place and not scene.logged())

    assert seen == [[id]]
    assert scene.status(id) == "unconfirmed"
    message = scene.topic.get(scene.message(id))
    assert message is not None
    assert (message.failure.reason if message.failure else None) == reason
    # It is in the queue, and in no log: nothing but the queue keeps it from being sent again.
    scene.age(id)
    assert scene.round() == Round(waiting=1)
    scene.lose(id)
    scene.age(id)
    assert scene.round() == Round(sent=1)


def test_handler_that_fails_and_then_succeeds_is_confirmed(scene: Consuming) -> None:
    id = scene.sent()
    attempts = []

    def second(body: Any, d: Any) -> None:
        attempts.append(d.attempt)
        if d.attempt < 3:
            raise Boom

    scene.consume(second, scene.confirms(), retry="immediate")
    scene.work(lambda: scene.status(id) == "confirmed")

    assert attempts == [1, 2, 3]
    assert scene.logged() == []


def test_log_row_that_another_delivery_left_is_made_new(scene: Consuming) -> None:
    id = scene.sent()
    scene.log(id, HOUR * 5, offset=77)
    received = []

    def look(body: Any, d: Any) -> None:
        with scene.engine.connect() as connection:
            query = sa.select(now_ms() - logs.c.received, logs.c.offset)
            received.append(tuple(connection.execute(query).one()))

    scene.consume(look, scene.confirms())
    scene.work(lambda: scene.status(id) == "confirmed")

    ((age, offset),) = received
    assert age < 10_000
    assert offset == 1


def test_handler_that_settles_its_delivery_itself_is_not_confirmed(
    database: Database, server: Server, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Consuming(database, server, name)
    id = scene.sent()
    seen: list[Any] = []

    def gives_back(body: Any, d: rmq.Delivery) -> None:
        seen.append(body)
        d.release(delay=600)

    scene.consume(gives_back, scene.confirms())
    with caplog.at_level(logging.WARNING, "rmq"):
        scene.work(lambda: seen and not scene.logged())

    assert scene.status(id) == "unconfirmed"
    assert "settled its delivery itself" in caplog.text
    scene.close()


# --- a database that is away, or that another program writes to ----------------------------------


def out_of_reach(scene: Consuming, tmp_path: Any) -> Any:
    """An engine of a database that cannot be opened, of the handler's kind."""
    gone = f"sqlite{'+aiosqlite' if scene.kind == 'async' else ''}:///{tmp_path}/none/x"
    return create_async_engine(gone) if scene.kind == "async" else sa.create_engine(gone)


@pytest.mark.parametrize("guard", ["check", "confirms"])
def test_what_cannot_ask_its_database_costs_no_retry_and_runs_nothing(
    scene: Consuming, tmp_path: Any, guard: str
) -> None:
    scene.sent()
    away, done = out_of_reach(scene, tmp_path), []
    stands = scene.outbox.confirms(away)
    if guard == "check":
        stands = rmq.idempotent(rmq.Claims(), check=scene.outbox.unconfirmed(away))
    scene.consume(lambda body, d: done.append(body), stands)

    with rmq.Worker(scene.client, heartbeat="thread") as worker:
        wait_for(lambda: worker.counts()[scene.name]["release"] >= 2, within=30)
        assert (done, worker.counts()[scene.name]["nack"]) == ([], 0)


class Refused(Exception):
    """An error as a database driver raises it."""


AWAY = sa.exc.OperationalError("UPDATE", {}, Refused(), connection_invalidated=True)


class LockTimeout(Exception):
    """Another transaction, as of a relay that stands still, has the row."""

    sqlstate = "55P03"


LOCKED = sa.exc.OperationalError("UPDATE", {}, LockTimeout())


@pytest.mark.parametrize(
    "error", [AWAY, LOCKED, ValueError("no")], ids=["away", "locked", "another error"]
)
def test_work_that_is_done_and_cannot_be_confirmed_is_confirmed_later_and_not_done_again(
    scene: Consuming, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    id, done, failures = scene.sent(), [], [error]
    real = confirm_queries.confirm

    def flaky(*arguments: Any) -> None:
        if failures:
            raise failures.pop()
        real(*arguments)

    monkeypatch.setattr(confirm_queries, "confirm", flaky)
    scene.consume(
        lambda body, d: done.append(d.attempt), scene.confirms(), rmq.idempotent(rmq.Claims())
    )

    with rmq.Worker(scene.client, heartbeat="thread") as worker:
        wait_for(lambda: worker.counts()[scene.name]["duplicate"], within=30)
        counts = worker.counts()[scene.name]

    assert done == [1]
    assert scene.status(id) == "confirmed"
    assert counts["nack"] == isinstance(error, ValueError)


def test_a_receipt_is_noted_by_a_writer_from_its_first_statement_on(scene: Consuming) -> None:
    """SQLite: whoever reads first and writes then is refused at once if another wrote between."""
    if scene.database.dialect != "sqlite":
        pytest.skip("others lock rows")
    id, between, attempts = scene.sent(), [], []
    engine = scene.theirs
    plain = getattr(engine, "sync_engine", engine)

    @sa.event.listens_for(plain, "connect")
    def connected(connection: Any, record: Any) -> None:
        connection.isolation_level = None

    @sa.event.listens_for(plain, "begin")
    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN")  # of SQLAlchemy's recipe for transactions that are some

    @sa.event.listens_for(plain, "after_cursor_execute")
    def asked(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if statement.startswith("SELECT rmq_stub.status") and not between:
            other = scene.database.engine(connect_args={"timeout": 0})
            try:
                with other.begin() as theirs:
                    theirs.execute(sa.update(stubs).values(sends=stubs.c.sends))
                between.append("wrote")
            except sa.exc.OperationalError:
                between.append("waits")

    with scene.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode=WAL")
    scene.consume(lambda body, d: attempts.append(d.attempt), scene.outbox.confirms(engine))

    scene.work(lambda: scene.status(id) == "confirmed")

    assert (between, attempts) == (["waits"], [1])


# --- bad input -----------------------------------------------------------------------------------


def plain(body: Any) -> None: ...


async def awaited(body: Any) -> None: ...


def test_wrong_kind_of_engine_is_refused_when_the_handler_is_registered(
    client: rmq.Client, name: str
) -> None:
    outbox, engine = Outbox(), sa.create_engine("sqlite://")
    other = create_async_engine("sqlite+aiosqlite://")

    with pytest.raises(rmq.InvalidType, match=r"handler awaited: .* give .* an AsyncEngine"):
        client.topic(name).handler(outbox.confirms(engine)(awaited))
    with pytest.raises(rmq.InvalidType, match=r"handler plain: .* give .* an Engine"):
        client.topic(name).handler(outbox.confirms(other)(plain))


def test_a_guard_above_confirms_is_refused_when_the_handler_is_registered(
    client: rmq.Client, name: str
) -> None:
    outbox, engine = Outbox(), sa.create_engine("sqlite://")
    confirms = outbox.confirms(engine)

    def handle(body: Any, connection: Any) -> None: ...

    told = r"handler .*: @{} is above @outbox.confirms: .* put @outbox.confirms on top"
    with pytest.raises(rmq.InvalidValue, match=told.format("exactly_once")):
        client.topic(name).handler(exactly_once(engine)(confirms(handle)))
    for store in (Ledger(engine), rmq.Claims()):
        checked = rmq.idempotent(store, check=lambda d: True)
        with pytest.raises(rmq.InvalidValue, match=told.format("idempotent")):
            client.topic(name).handler(checked(confirms(lambda body: None)))
    # A claim without a check is taken before all guards, wherever it stands.
    client.topic(name).handler(rmq.idempotent(rmq.Claims())(confirms(lambda body: None)))
    client.topic(name + "b").handler(confirms(exactly_once(engine)(lambda body, connection: None)))


def test_confirms_refuses_what_cannot_work_by_name(client: rmq.Client, name: str) -> None:
    outbox, engine = Outbox(), sa.create_engine("sqlite://")
    topic: Any = client.topic(name)

    with pytest.raises(rmq.InvalidType, match="engine: str"):
        outbox.confirms("sqlite://")  # type: ignore[arg-type]
    with pytest.raises(rmq.InvalidType, match="via: str"):
        outbox.confirms(engine, via=name)  # type: ignore[arg-type]
    with pytest.raises(rmq.InvalidType, match="via: Topic with AsyncEngine"):
        outbox.confirms(create_async_engine("sqlite+aiosqlite://"), via=topic)
    with pytest.raises(rmq.InvalidType, match="engine: NoneType"):
        outbox.unconfirmed(None)  # type: ignore[arg-type]
    with pytest.raises(rmq.InvalidType, match="engine: NoneType"):
        outbox.confirm_handler(None)  # type: ignore[arg-type]
    with pytest.raises(rmq.InvalidValue, match="Confirms wraps one message at a time"):
        topic.handler(batch=10)(outbox.confirms(engine)(lambda deliveries: None))


def test_missing_tables_refuse_the_start_with_the_command_that_creates_them(
    database: Database, server: Server, name: str
) -> None:
    scene = Consuming(database, server, name)
    metadata.drop_all(scene.engine)
    scene.consume(lambda body, d: None, scene.confirms())

    with pytest.raises(rmq.ConfigurationError, match="rmq outbox create"):
        rmq.Worker(scene.client, heartbeat="thread").start()
    scene.close()
