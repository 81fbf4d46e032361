"""`exactly_once`: the ledger's row and what the handler writes stand or fall together."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

import rmq
from rmq.kernel.core.interceptor import middleware_of
from rmq.ledger import exactly_once
from rmq.sql.ledger import exactly_once as exactly_once_module
from tests.sql.ledgers import (
    CLOCK_MS,
    OTHER,
    Books,
    Copy,
    by_kind,
    effects,
    together,
    write,
    writing,
)


@by_kind
def test_row_and_writes_commit_together_and_copies_write_nothing(books: Books, orm: bool) -> None:
    guard, seen = books.once(orm), []

    def work(**given: Any) -> Any:
        seen.append((list(given), books.rows(), books.effects()))
        return write("k")

    found = [books.run(guard, one, work) for one in (Copy(), Copy(fence=2), OTHER)]

    assert found == [True, False, False]
    assert seen == [(["session" if orm else "connection"], [], [])]  # others see nothing before
    assert books.effects() == ["k"]
    row = books.row()
    assert (row.consumer, row.topic, row.key) == ("default", "t", "k")
    assert (row.state, books.owner(), row.expires) == ("consumed", "m1:1", None)


@by_kind
@pytest.mark.parametrize(
    "error",
    [ValueError("no"), rmq.Snooze(1), rmq.Retry(1), rmq.Reject("no")],
    ids=lambda error: type(error).__name__,
)
def test_a_handler_that_raises_leaves_nothing_and_the_next_delivery_runs(
    books: Books, orm: bool, error: Exception
) -> None:
    guard = books.once(orm)

    def work(**given: Any) -> Any:
        def then(connection: sa.Connection) -> None:
            write("k")(connection)
            raise error

        return then

    with pytest.raises(type(error)):
        books.run(guard, Copy(), work)
    assert (books.rows(), books.effects()) == ([], [])
    assert books.run(guard, Copy(fence=2), writing())
    assert books.effects() == ["k"]


@by_kind
@pytest.mark.parametrize("ends", ["commits", "fails"])
def test_a_copy_that_comes_meanwhile_waits_for_the_end(books: Books, orm: bool, ends: str) -> None:
    guard, inside, order = books.once(orm), threading.Event(), []

    def first(**given: Any) -> None:
        (place,) = given.values()
        books.inside(place, write("first"))
        inside.set()
        time.sleep(0.5)  # as long as the second one has to come and wait
        order.append("first ends")
        if ends == "fails":
            raise ValueError("no")

    def second() -> bool:
        inside.wait(30)
        found = books.run(guard, OTHER, writing("second"))
        order.append("second ends")
        return found

    found = together(lambda: books.run(guard, Copy(), first), second)

    assert order == ["first ends", "second ends"]
    if ends == "commits":
        assert (found, books.effects()) == ([True, False], ["first"])
    else:
        assert isinstance(found[0], ValueError)
        assert (found[1], books.effects()) == (True, ["second"])


COPIES = 8


def until_settled(books: Books, guard: Any, one: Copy, work: Any = writing()) -> bool:  # noqa: B008
    """As a worker: what is put off comes again."""
    for _ in range(200):
        try:
            return books.run(guard, one, work)
        except rmq.Snooze as snooze:
            time.sleep(float(snooze.delay))  # type: ignore[arg-type]
    raise AssertionError("it is put off for ever")


@by_kind
@pytest.mark.parametrize("before", ["nothing", "an expired claim", "an expired entry"])
def test_of_copies_at_once_one_takes_effect(books: Books, orm: bool, before: str) -> None:
    guard = books.once(orm, ttl=60)
    if before != "nothing":
        books.run(books.guard(), Copy(id="m0"))
        if before == "an expired claim":
            with books.outside.begin() as connection:
                connection.exec_driver_sql("UPDATE rmq_ledger SET state = 'consuming'")
        books.expire()
    copies = [Copy(fence=n) for n in range(COPIES)]

    found = together(*(lambda one=one: until_settled(books, guard, one) for one in copies))

    assert sorted(found) == [False] * (COPIES - 1) + [True], found
    assert books.effects() == ["k"]


def test_of_copies_that_wait_one_goes_on_when_the_first_fails(books: Books) -> None:
    # MariaDB wakes them all with a shared lock on the index, and ends all but one as deadlocked.
    guard, failed, lock = books.once(), [], threading.Lock()

    def failing_once(**given: Any) -> None:
        (place,) = given.values()
        with lock:
            first = not failed
            failed.append(1)
        books.inside(place, write("k"))
        if first:
            time.sleep(0.5)  # until the others have come
            raise ValueError("the first one")

    copies = [Copy(fence=n) for n in range(COPIES)]
    found = together(
        *(lambda one=one: until_settled(books, guard, one, failing_once) for one in copies)
    )

    kinds = sorted(str(one) for one in found)
    assert kinds == ["False"] * (COPIES - 2) + ["True", "the first one"]
    assert books.effects() == ["k"]


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_at_every_isolation_level_one_takes_effect(books: Books, level: str) -> None:
    if books.database.dialect == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    guard = books.once(source=books.source(isolation_level=level))
    copies = [Copy(fence=n) for n in range(COPIES)]

    found = together(*(lambda one=one: until_settled(books, guard, one) for one in copies))

    assert found.count(True) == 1, found
    assert all(isinstance(one, bool) for one in found), found
    assert books.effects() == ["k"]


def test_that_check_fails_without_the_row(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exactly_once_module, "_begin", lambda connection, row: True)
    monkeypatch.setattr(exactly_once_module, "_finish", lambda connection, row, ttl_ms, one: None)
    guard = books.once()

    together(*(lambda n=n: until_settled(books, guard, Copy(fence=n)) for n in range(COPIES)))

    assert books.effects() == ["k"] * COPIES


def test_keys_topics_and_consumers_have_effects_of_their_own(books: Books) -> None:
    first, second = books.once(), books.once(consumer="mailer")

    for guard in (first, second, first, second):
        for key in ("a", "A", "a ", "\u00e1"):
            for topic in ("t", "u"):
                books.run(guard, Copy(key, topic=topic), writing(key))

    assert len(books.effects()) == len(books.rows()) == 16


# --- redriven to another topic -------------------------------------------------------------------


def moved(key: str = "k") -> Copy:
    """Return message m1 of topic t, redriven to topic u."""
    return Copy(key, "m2", topic="u", former=("t", "m1"))


@pytest.mark.parametrize("guarded", ["once", "ledger"])
def test_work_that_was_done_in_the_topic_before_a_redrive_is_not_repeated(
    books: Books, guarded: str
) -> None:
    guard = books.once() if guarded == "once" else books.guard()
    ran = []

    def work(**given: Any) -> None:
        ran.append(1)

    assert books.run(guard, Copy(), work)
    assert not books.run(guard, moved(), work)
    assert books.run(guard, Copy("k2", "m3"), work)  # of another message with the same key
    assert books.run(guard, moved("k2"), work)
    assert not books.run(guard, Copy("k2", former=("u", "m2")), work)  # redriven back
    assert len(ran) == 3


def test_a_late_run_in_the_topic_before_a_redrive_is_waited_for(books: Books) -> None:
    guard, inside = books.once(), threading.Event()

    def first(**given: Any) -> None:
        (place,) = given.values()
        books.inside(place, write("first"))
        inside.set()
        time.sleep(0.5)  # as long as the second one has to come and wait

    def second() -> bool:
        inside.wait(30)
        return books.run(guard, moved(), writing("second"))

    found = together(lambda: books.run(guard, Copy(), first), second)

    assert (found, books.effects()) == ([True, False], ["first"])


# --- beside a Ledger, and time -------------------------------------------------------------------


def test_what_a_ledger_is_at_comes_back_later_until_it_expires(books: Books) -> None:
    store, guard = books.guard(hold=20), books.once()

    def work() -> None:
        with pytest.raises(rmq.Snooze) as raised:
            books.run(guard, OTHER, writing())
        assert 0.1 <= raised.value.delay < 5
        books.expire()
        assert books.run(guard, OTHER, writing())

    assert books.run(store, Copy(), work)
    assert books.effects() == ["k"]
    assert (books.owner(), books.row().state, books.row().expires) == ("m2:9", "consumed", None)


def test_what_a_ledger_has_done_is_done(books: Books) -> None:
    books.run(books.guard(), Copy())

    assert books.run(books.once(), OTHER, writing()) is False
    assert books.effects() == []


def test_with_a_ttl_a_key_is_forgotten_once_it_has_passed(books: Books) -> None:
    guard = books.once(ttl=60)

    assert books.run(guard, Copy(), writing())
    assert books.row().expires - books.row().created == pytest.approx(60_000, abs=CLOCK_MS)
    assert not books.run(guard, OTHER, writing())
    books.expire()
    assert books.run(guard, OTHER, writing())
    assert (books.effects(), books.owner()) == (["k", "k"], "m2:9")


def test_without_a_ttl_a_key_is_kept(books: Books) -> None:
    guard = books.once()
    books.run(guard, Copy(), writing())

    books.shift(created=-10 * 365 * 86_400_000)

    assert not books.run(guard, OTHER, writing())


# --- what a handler must not do ------------------------------------------------------------------


@by_kind
@pytest.mark.parametrize("verb", ["commit", "rollback"])
def test_a_handler_that_ends_the_transaction_itself_is_reported(
    books: Books, orm: bool, verb: str
) -> None:
    guard = books.once(orm)

    def work(**given: Any) -> Any:
        (place,) = given.values()

        def then(connection: sa.Connection) -> None:
            write("k")(connection)
            if orm and books.is_async:
                getattr(place.sync_session, verb)()
            elif orm:
                getattr(place, verb)()
            else:
                getattr(connection, verb)()

        return then

    with pytest.raises(rmq.ConfigurationError, match="has ended its transaction itself"):
        books.run(guard, Copy(), work)

    kept = verb == "commit"
    assert (len(books.rows()), len(books.effects())) == (kept, kept)
    if kept:
        with pytest.raises(rmq.Reject, match="delivery 1 of m1 committed a part of its work"):
            books.run(guard, OTHER, writing())
    else:
        assert books.run(guard, OTHER, writing())
    assert books.effects() == ["k"]


COMMITS = {
    "SQL": lambda connection: connection.exec_driver_sql("COMMIT"),
    "the driver": lambda connection: connection.connection.commit(),
    "DDL": lambda connection: connection.exec_driver_sql("CREATE TABLE ddl (n INT)"),
}


@by_kind
@pytest.mark.parametrize("commits", ["SQLAlchemy", *COMMITS])
def test_half_of_the_work_that_is_committed_is_neither_repeated_nor_taken_for_all(
    books: Books, orm: bool, commits: str
) -> None:
    if commits == "DDL" and books.database.dialect != "mariadb":
        pytest.skip("DDL is part of the transaction")
    guard = books.once(orm, ttl=60)

    def work(**given: Any) -> Any:
        def then(connection: sa.Connection) -> None:
            write("first half")(connection)
            place = given["session" if orm else "connection"]
            if commits == "SQLAlchemy":
                getattr(place, "sync_session", place if orm else connection).commit()
            else:
                COMMITS[commits](connection)
            raise ValueError("before the second half")

        return then

    with pytest.raises(ValueError, match="before the second half"):
        books.run(guard, Copy(), work)
    for again in (guard, books.guard()):
        with pytest.raises(rmq.Reject, match="committed a part of its work"):
            books.run(again, Copy(fence=2), writing())

    assert books.effects() == ["first half"]
    assert (books.states(), books.row().expires) == ({"k": "consuming"}, None)


def test_work_that_was_committed_in_two_parts_is_done(books: Books) -> None:
    guard = books.once(ttl=60)

    def work(**given: Any) -> Any:
        def then(connection: sa.Connection) -> None:
            write("first half")(connection)
            connection.exec_driver_sql("COMMIT")
            write("second half")(connection)

        return then

    assert books.run(guard, Copy(), work)
    assert not books.run(guard, OTHER, writing())
    assert books.effects() == ["first half", "second half"]
    assert books.states() == {"k": "consumed"}
    assert books.row().expires - books.row().created == pytest.approx(60_000, abs=CLOCK_MS)


def test_an_engine_that_commits_every_statement_is_refused_before_it_writes(books: Books) -> None:
    source = books.source(isolation_level="AUTOCOMMIT")

    with pytest.raises(rmq.ConfigurationError, match="AUTOCOMMIT"):
        books.run(books.once(source=source), Copy(), writing())
    assert (books.rows(), books.effects()) == ([], [])


def test_autocommit_as_an_option_of_the_engine_is_refused_too(books: Books) -> None:
    source = books.source().execution_options(isolation_level="AUTOCOMMIT")

    with pytest.raises(rmq.ConfigurationError, match="AUTOCOMMIT"):
        books.run(books.once(source=source), Copy(), writing())
    assert books.rows() == []


def test_autocommit_of_the_driver_is_refused_too(books: Books) -> None:
    told = {
        "postgresql": {"autocommit": True},
        "mariadb": {"autocommit": True},
        "sqlite": {"isolation_level": None},
    }
    source = books.source(connect_args=told[books.database.dialect])

    with pytest.raises(rmq.ConfigurationError, match="AUTOCOMMIT"):
        books.run(books.once(source=source), Copy(), writing())
    assert books.rows() == []


# --- registration --------------------------------------------------------------------------------

ENGINE = sa.create_engine("sqlite://")


class Base(DeclarativeBase):
    pass


class Booking(Base):
    __tablename__ = "bookings"
    n: Mapped[int] = mapped_column(primary_key=True)
    order: Mapped[str] = mapped_column(sa.String(50))


def test_a_session_writes_objects_and_a_direct_call_is_the_plain_function(books: Books) -> None:
    if books.is_async:
        pytest.skip("the plain function is what a unit test calls")
    maker = books.source(orm=True)
    Base.metadata.create_all(books.outside)

    @exactly_once(maker, key=lambda body: body)
    def book(body: str, session: Any) -> str:
        session.add(Booking(order=body))
        return body.upper()

    (guard,) = middleware_of(book)
    for _ in range(2):
        guard.run(Copy("order 7"), lambda session: book("order 7", session))  # type: ignore[arg-type]
    with books.outside.connect() as connection:
        assert connection.scalars(sa.select(Booking.order)).all() == ["order 7"]

    class Sheet:
        added: Any = None

        def add(self, thing: Any) -> None:
            self.added = thing

    sheet = Sheet()
    assert book("x", sheet) == "X"
    assert sheet.added.order == "x"


def test_a_session_that_reads_from_a_replica_has_its_row_where_it_writes(books: Books) -> None:
    if books.is_async:
        pytest.skip("an async session asks a plain one")
    primary, replica = books.source(), sa.create_engine("sqlite://")  # without tables

    class Routing(Session):
        def get_bind(self, mapper: Any = None, *, clause: Any = None, **options: Any) -> Any:
            return primary if isinstance(clause, sa.Insert | sa.Update | sa.Delete) else replica

    guard = books.once(source=sessionmaker(class_=Routing))

    def work(session: Session) -> None:
        session.execute(sa.insert(effects).values(key="k"))

    assert books.run(guard, Copy(), work)
    assert not books.run(guard, OTHER, work)
    assert (books.effects(), books.states()) == (["k"], {"k": "consumed"})


def test_a_ttl_below_the_lease_is_refused(client: rmq.Client, name: str) -> None:
    @client.topic(name, lease=30).handler
    @exactly_once(ENGINE, ttl=20)
    def handle(body: Any, connection: Any) -> None: ...

    with pytest.raises(rmq.InvalidValue, match="ttl: 20 s, and a lease is 30 s"):
        rmq.Worker(client, heartbeat="thread").start()


def test_a_source_of_the_other_kind_is_refused_when_the_handler_is_registered(
    books: Books, client: rmq.Client, name: str
) -> None:
    def plain(body: Any, session: Any) -> None: ...

    async def awaited(body: Any, session: Any) -> None: ...

    right, wrong = (awaited, plain) if books.is_async else (plain, awaited)
    once = exactly_once(books.source(orm=True))

    with pytest.raises(rmq.InvalidType, match=rf"handler .*{wrong.__name__}: .*; give it"):
        client.topic(name).handler(once(wrong))
    client.topic(name + "b").handler(once(right))


def test_a_batch_is_refused(client: rmq.Client, name: str) -> None:
    @exactly_once(ENGINE)
    def handle(deliveries: Any, connection: Any) -> None: ...

    with pytest.raises(rmq.InvalidValue, match="wraps one message at a time"):
        client.topic(name).handler(batch=10)(handle)
