"""`Ledger`: what becomes of the row, and of the handler, on every path."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

import rmq
from rmq.sql.ledger import rows
from tests.sql.ledgers import CLOCK_MS, OTHER, Books, Copy, Ran, together


def test_the_first_delivery_runs_and_its_copies_do_not(books: Books) -> None:
    guard, ran = books.guard(ttl=60), Ran()

    found = [books.run(guard, one, ran) for one in (Copy(), Copy(fence=2), OTHER)]

    assert (found, ran.times) == ([True, False, False], 1)
    row = books.row()
    assert (row.consumer, row.topic, row.key) == ("default", "t", "k")
    assert (row.state, books.owner()) == ("consumed", "m1:1")
    assert 59_000 <= row.expires - row.created <= 61_000


def test_while_it_runs_a_copy_comes_back_later_and_is_not_run(books: Books) -> None:
    guard, ran, seen = books.guard(hold=20), Ran(), []

    def work() -> None:
        row = books.row()
        seen.append((row.state, books.owner(), row.expires - row.created))
        with pytest.raises(rmq.Snooze) as raised:
            books.run(guard, OTHER, ran)
        seen.append(raised.value.delay)

    assert books.run(guard, Copy(), work)
    assert seen[0] == ("consuming", "m1:1", pytest.approx(20_000, abs=CLOCK_MS))
    assert 0.1 <= seen[1] < 5
    assert ran.times == 0
    assert books.owner() == "m1:1"


@pytest.mark.parametrize(
    ("age_ms", "left_ms", "least", "most"),
    [(12_000, 90_000, 12, 15), (100_000, 90_000, 30, 30), (50_000, 4_000, 2, 4), (0, 50, 0, 0.05)],
)
def test_the_wait_follows_the_age_of_the_claim_up_to_what_is_left(
    books: Books, age_ms: int, left_ms: int, least: float, most: float
) -> None:
    def work() -> None:
        books.shift(created=-age_ms)
        books.shift(expires=left_ms - 100_000)
        try:
            books.run(books.guard(), OTHER)
        except rmq.Snooze as snooze:
            waits.append(snooze.delay)

    waits: list[float] = []
    books.run(books.guard(hold=100), Copy(), work)

    if left_ms < 1000 and not waits:
        return  # the machine was slow, and it was taken over
    assert least <= waits[0] <= most


class Odd(BaseException):
    pass


@pytest.mark.parametrize(
    "error",
    [ValueError("no"), rmq.Snooze(1), rmq.Retry(1), rmq.Reject("no"), SystemExit(1), Odd()],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_a_run_that_fails_gives_its_claim_up_and_is_not_swallowed(books: Books, error: Any) -> None:
    if books.is_async and isinstance(error, SystemExit):
        pytest.skip("an event loop lets nobody catch SystemExit of a task")
    guard, ran = books.guard(), Ran()

    def work() -> None:
        assert books.states() == {"k": "consuming"}
        raise error

    with pytest.raises(type(error)):
        books.run(guard, Copy(), work)

    assert books.rows() == []
    assert books.run(guard, Copy(fence=2), ran)
    assert ran.times == 1


@pytest.mark.parametrize("ends", ["returns", "raises"])
def test_an_expired_claim_is_taken_over_and_its_first_owner_can_neither_mark_nor_remove_it(
    books: Books, caplog: pytest.LogCaptureFixture, ends: str
) -> None:
    guard = books.guard()
    taken, first_has_ended = threading.Event(), threading.Event()

    def work() -> None:
        books.expire()
        taken.set()
        assert within.wait(30)
        if ends == "raises":
            raise ValueError("too late")

    def work_second() -> None:
        within.set()
        assert first_has_ended.wait(30)

    def first() -> bool:
        try:
            return books.run(guard, Copy(), work)
        finally:
            seen.append((books.owner(), books.row().state))
            first_has_ended.set()

    def second() -> bool:
        assert taken.wait(30)
        return books.run(guard, OTHER, work_second)

    within, seen = threading.Event(), []
    found = together(first, second)

    assert seen == [("m2:9", "consuming")]
    assert found[1] is True
    assert (books.owner(), books.row().state) == ("m2:9", "consumed")
    if ends == "returns":
        assert found[0] is True  # its work was done; a nack would do it once more
        assert "another delivery may have done the same work" in caplog.text
    else:
        assert isinstance(found[0], ValueError)


@pytest.mark.parametrize("meanwhile", ["another took over", "its owner renewed it", "nothing"])
def test_a_take_over_succeeds_only_on_what_was_found(books: Books, meanwhile: str) -> None:
    one, two, three = (rows.row_of("default", Copy(id=id), "k") for id in ("m1", "m2", "m3"))
    with books.outside.connect() as connection:
        rows.claim(connection, one, 60_000)
        books.expire()
        found = rows.look(connection, one)
        connection.commit()
        assert found is not None
        if meanwhile == "another took over":
            rows.claim(connection, two, 60_000)
            books.expire()  # so that only the owner tells
        elif meanwhile == "its owner renewed it":
            rows.renew(connection, [one], 60_000)

        taken = rows.replace(connection, three, found, "consuming", 60_000)
        connection.commit()

    owner = {"another took over": "m2:1", "its owner renewed it": "m1:1", "nothing": "m3:1"}
    assert taken is (meanwhile == "nothing")
    assert books.owner() == owner[meanwhile]


@pytest.mark.parametrize("ends", ["returns", "raises"])
def test_a_delivery_that_lost_its_claim_does_not_change_its_successors_row(
    books: Books, caplog: pytest.LogCaptureFixture, ends: str
) -> None:
    guard, second = books.guard(), Ran()

    def work() -> None:
        books.expire()
        assert books.run(guard, OTHER, second)
        if ends == "raises":
            raise ValueError("too late")

    if ends == "raises":
        with pytest.raises(ValueError, match="too late"):
            books.run(guard, Copy(), work)
    else:
        assert books.run(guard, Copy(), work)

    assert second.times == 1
    assert (books.owner(), books.row().state) == ("m2:9", "consumed")
    assert ("another delivery" in caplog.text) == (ends == "returns")


def test_a_row_that_was_deleted_meanwhile_is_reported_and_the_work_counts_as_done(
    books: Books, caplog: pytest.LogCaptureFixture
) -> None:
    assert books.run(books.guard(), Copy(), books.clear)

    assert "key 'k' of t expired, or was deleted, while m1:1:" in caplog.text
    assert books.rows() == []


def test_what_was_done_is_done_again_once_its_ttl_has_passed(books: Books) -> None:
    guard, ran = books.guard(), Ran()
    books.run(guard, Copy(), ran)
    books.expire()

    assert books.run(guard, OTHER, ran)
    assert (ran.times, books.owner()) == (2, "m2:9")


COPIES = 8


@pytest.mark.parametrize("before", ["nothing", "an expired claim", "an expired entry"])
def test_of_copies_at_once_one_runs(books: Books, before: str) -> None:
    guard, ran = books.guard(), Ran(lambda: time.sleep(0.2))
    if before != "nothing":
        books.run(guard, Copy(id="m0"))
        if before == "an expired claim":
            with books.outside.begin() as connection:
                connection.exec_driver_sql("UPDATE rmq_ledger SET state = 'consuming'")
        books.expire()
    copies = [Copy(fence=n) for n in range(COPIES)]

    found = together(*(lambda one=one: books.run(guard, one, ran) for one in copies))

    assert ran.times == 1
    assert found.count(True) == 1
    assert all(one is True or one is False or isinstance(one, rmq.Snooze) for one in found), found


def test_that_check_fails_for_a_ledger_that_claims_what_is_claimed(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "claim", lambda connection, row, hold_ms: True)
    guard, ran = books.guard(), Ran(lambda: time.sleep(0.2))

    together(*(lambda n=n: books.run(guard, Copy(fence=n), ran) for n in range(COPIES)))

    assert ran.times == COPIES


DIFFERENT = [
    "a",
    "A",
    "a ",
    " a",
    "\u00e1",
    "a\u0301",
    "\uff41",
    "\u00df",
    "ss",
    "1",
    "01",
    "\u0416" * 100,
]


def test_keys_that_differ_in_any_byte_are_different_work(books: Books) -> None:
    guard, ran = books.guard(), Ran()

    found = [books.run(guard, Copy(key), ran) for key in DIFFERENT + DIFFERENT]

    assert found == [True] * len(DIFFERENT) + [False] * len(DIFFERENT)
    assert set(books.states()) == set(DIFFERENT)


def test_consumers_and_topics_have_rows_of_their_own(books: Books) -> None:
    ran = Ran()

    for guard in (books.guard(), books.guard(consumer="mailer")):
        for topic in ("t", "T", "u"):
            books.run(guard, Copy(topic=topic), ran)
            books.run(guard, Copy(topic=topic, fence=2), ran)

    assert (ran.times, len(books.rows())) == (6, 6)


# --- check= ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [True, False])
def test_a_check_says_whether_the_work_is_still_to_be_done(books: Books, answer: bool) -> None:
    asked, ran = [], Ran()

    def check(one: Any) -> bool:
        asked.append((one.id, books.states()))
        return answer

    async def check_async(one: Any) -> bool:
        return check(one)

    guard = books.guard(check=check_async if books.is_async else check)

    assert books.run(guard, Copy(), ran) is answer
    assert books.run(guard, OTHER, ran) is False
    assert asked == [("m1", {"k": "consuming"})]
    assert (ran.times, books.states()) == (int(answer), {"k": "consumed"})


def test_a_check_that_fails_gives_the_claim_up(books: Books) -> None:
    ran = Ran()

    def check(one: Any) -> bool:
        raise OSError("away")

    with pytest.raises(OSError, match="away"):
        books.run(books.guard(check=check), Copy(), ran)
    assert (ran.times, books.rows()) == (0, [])


# --- bad input -----------------------------------------------------------------------------------


def test_a_ttl_below_the_lease_is_refused(books: Books) -> None:
    with pytest.raises(rmq.InvalidValue, match=r"ttl: 20 s, and a lease is 30 s"):
        books.guard(ttl=20).check_lease(30_000)
    books.guard(ttl=30).check_lease(30_000)


def test_a_claim_lives_a_little_longer_than_the_lease_unless_hold_says(books: Books) -> None:
    lives = []

    def work() -> None:
        row = books.row()
        lives.append(row.expires - row.created)

    for guard in (books.guard(), books.guard(hold=5)):
        guard.check_lease(12_000)
        books.run(guard, Copy(), work)
        books.clear()

    assert lives == pytest.approx([13_000, 5_000], abs=CLOCK_MS)


def raising(body: Any) -> Any:
    raise KeyError("id")


UNUSABLE = [
    (lambda body: None, "NoneType"),
    (raising, "raised KeyError"),
    (lambda body: "", "0 bytes"),
    (lambda body: "k" * 201, "201 bytes"),
    (lambda body: "a\0b", "NUL"),
    (lambda body: "\ud800", "not valid Unicode"),
    ("header:id", "header 'id'"),
]


def test_a_message_without_a_usable_key_is_not_run(books: Books) -> None:
    ran = Ran()

    for key, told in UNUSABLE:
        with pytest.raises(rmq.InvalidKey, match=told):
            books.run(books.guard(key=key), Copy(), ran)
    assert (ran.times, books.rows()) == (0, [])


def test_an_engine_of_the_other_kind_is_refused_when_the_handler_is_registered(
    books: Books, client: rmq.Client, name: str
) -> None:
    def plain(body: Any) -> None: ...

    async def awaited(body: Any) -> None: ...

    store = books.ledger()
    right, wrong = (awaited, plain) if books.is_async else (plain, awaited)

    with pytest.raises(rmq.InvalidType, match=rf"handler .*{wrong.__name__}: .*Engine; give it"):
        client.topic(name).handler(rmq.idempotent(store)(wrong))
    client.topic(name + "b").handler(rmq.idempotent(store)(right))
