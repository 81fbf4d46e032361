"""The program of each section of docs/guarantees.md runs on a real Redis and on SQLite."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text

import rmq
from rmq import ledger, outbox
from tests.patience import wait_for
from tests.servers import Server

pytestmark = pytest.mark.slow  # `make test` reads the README alone

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text()
REDIS, DATABASE = "redis://localhost:6379/0", "sqlite:///shop.db"
FIRST = "All guards"  # the section with what all programs begin with
TABLES = """
    CREATE TABLE article (id VARCHAR(20) PRIMARY KEY, shown INTEGER, price INTEGER, fence BIGINT);
    CREATE TABLE invoice (id VARCHAR(20) PRIMARY KEY, sent INTEGER);
    CREATE TABLE account (id VARCHAR(20) PRIMARY KEY, balance INTEGER);
    CREATE TABLE cheque (id VARCHAR(20) PRIMARY KEY, state VARCHAR(20));
    CREATE TABLE sale (id VARCHAR(20) PRIMARY KEY);
    INSERT INTO article VALUES ('tea', 0, 280, 0);
    INSERT INTO invoice VALUES ('i7', 0);
    INSERT INTO account VALUES ('ada', 100), ('bob', 0)
"""


def sections() -> dict[str, list[str]]:
    """The Python blocks under each heading."""
    found = {}
    for part in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        heading, _, rest = part.partition("\n")
        found[heading] = re.findall(r"^```python\n(.*?)^```$", rest, re.MULTILINE | re.DOTALL)
    return found


BLOCKS = sections()
ELSEWHERE = {"Recipes without middleware"}  # tests/sql/test_recipes.py runs examples/recipes.py


class Third:
    """Mail, and a provider: they note what is asked of them, and fail when told to."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.fails = 0

    def _do(self, what: Any) -> None:
        self.done.append(what)
        if self.fails:
            self.fails -= 1
            raise TimeoutError("it was done, and nobody heard of it")

    def mail(self, body: dict[str, Any]) -> None:
        self._do(body["id"])

    def charge(self, amount: int, idempotency_key: str) -> None:
        if idempotency_key not in self.done:
            self._do(idempotency_key)

    def draw(self, amount: int) -> None:
        self._do(amount)


class Program:
    """The page's program, as far as one section needs it."""

    def __init__(self, server: Server, home: Path, heading: str, third: Third) -> None:
        self.third = third
        self.names: dict[str, Any] = {
            "send_mail": third.mail,
            "provider": SimpleNamespace(charge=third.charge, draw=third.draw),
        }
        url = f"sqlite:///{home}/shop.db"
        prepared = create_engine(url)
        with prepared.begin() as connection:
            for statement in TABLES.split(";"):
                connection.execute(text(statement))
        ledger.metadata.create_all(prepared)
        outbox.metadata.create_all(prepared)
        prepared.dispose()
        for block in [*BLOCKS[FIRST], *BLOCKS[heading]]:
            block = block.replace(REDIS, server.url).replace(DATABASE, url)
            exec(compile(block, f"guarantees.md: {heading}", "exec"), self.names)

    @property
    def client(self) -> rmq.Client:
        found: rmq.Client = self.names["client"]
        return found

    @property
    def engine(self) -> Engine:
        found: Engine = self.names["engine"]
        return found

    def one(self, query: str) -> Any:
        with self.engine.connect() as connection:
            return connection.execute(text(query)).scalar()

    def settle(self, topic: str, bodies: list[Any], count: int = 0, **options: Any) -> None:
        """Send messages, and let a worker work until all are settled or dead."""
        self.names[topic].send_many([rmq.Outgoing(one, **options) for one in bodies])

        def ended() -> bool:
            stats = self.client.admin.stats(topic)
            return stats["settled"] + stats["dead"] == (count or len(bodies))

        with rmq.Worker(self.client, heartbeat="thread"):
            wait_for(ended)

    def close(self) -> None:
        self.client.close()
        self.engine.dispose()


@pytest.fixture
def third() -> Third:
    return Third()


@pytest.fixture
def program(own_server: Server, tmp_path: Path, third: Third) -> Iterator[Callable[[str], Program]]:
    made: list[Program] = []

    def make(heading: str) -> Program:
        made.append(Program(own_server, tmp_path, heading, third))
        return made[-1]

    yield make
    for one in made:
        one.close()


Make = Callable[[str], Program]


def forget_claims(server: Server) -> int:
    """Delete all claims behind RMQ's back; how many there were."""
    with server.raw() as raw:
        claims = list(raw.scan_iter("*:claim:*"))
        return int(raw.delete(*claims)) if claims else 0


def test_0_a_set_value_bears_a_second_run(program: Make) -> None:
    shop = program("0 Nothing")

    shop.settle("stock", [{"id": "tea", "left": 5}] * 3)

    assert shop.one("SELECT shown FROM article") == 5


def test_1_two_messages_come_of_four_sends(program: Make) -> None:
    shop = program("1 The send")

    assert (shop.names["first"].status, shop.names["again"].status) == ("stored", "duplicate")
    assert shop.client.admin.stats("orders")["priority"] == 2


def test_2_three_copies_are_one_mail(program: Make, third: Third) -> None:
    shop = program("2 A claim")

    shop.settle("letters", [{"id": "a"}, {"id": "b"}] * 3)

    assert sorted(third.done) == ["a", "b"]


def test_2_copies_without_a_worker_are_one_mail(program: Make, third: Third) -> None:
    shop = program("2 A claim")
    shop.client.topic("letters").send_many([rmq.Outgoing({"id": "a"})] * 3)

    exec(BLOCKS["2 A claim"][1], shop.names)
    again = shop.client.topic("letters").consumer().receive(10, wait=2)

    assert third.done == ["a"]
    assert [d.attempt for d in again] == [1, 1], "busy when they were looked at, and handed back"


def test_2_a_handler_that_fails_after_the_mail_sends_it_twice(program: Make, third: Third) -> None:
    shop = program("2 A claim")
    third.fails = 1

    shop.settle("letters", [{"id": "a"}])

    assert third.done == ["a", "a"]


def test_2_a_worker_that_dies_after_the_mail_has_it_sent_twice(program: Make, third: Third) -> None:
    shop = program("2 A claim")
    letters = shop.client.topic("letters")
    letters.send({"id": "a"})
    dying = letters.consumer(lease=1)
    (d,) = rmq.Claims().first(dying.receive(), key=lambda letter: letter["id"])
    third.mail(d.body)  # and it is never heard of again

    shop.settle("letters", [], count=1)

    assert third.done == ["a", "a"]


def test_2_a_copy_after_the_claim_was_lost_is_a_second_mail(
    program: Make, third: Third, own_server: Server
) -> None:
    shop = program("2 A claim")
    shop.settle("letters", [{"id": "a"}])

    forget_claims(own_server)
    shop.settle("letters", [{"id": "a"}], count=2)

    assert third.done == ["a", "a"]


def test_3_a_copy_after_the_claim_was_lost_is_no_second_mail(
    program: Make, third: Third, own_server: Server
) -> None:
    shop = program("3 A claim and a check in the database")
    shop.settle("invoices", [{"id": "i7"}])

    forget_claims(own_server)
    shop.settle("invoices", [{"id": "i7"}], count=2)

    assert third.done == ["i7"]


def test_3_a_handler_that_fails_before_the_update_sends_twice(program: Make, third: Third) -> None:
    shop = program("3 A claim and a check in the database")
    third.fails = 1

    shop.settle("invoices", [{"id": "i7"}])

    assert third.done == ["i7", "i7"]


def test_4_three_copies_are_one_mail_and_redis_has_no_claim(
    program: Make, third: Third, own_server: Server
) -> None:
    shop = program("4 A ledger")

    shop.settle("parcels", [{"id": "a"}, {"id": "b"}] * 3)

    assert sorted(third.done) == ["a", "b"]
    assert forget_claims(own_server) == 0


def test_5_three_copies_move_the_money_once(program: Make) -> None:
    shop = program("5 One transaction")

    shop.settle("transfers", [{"id": 7, "amount": 30, "source": "ada", "target": "bob"}] * 3)

    assert shop.one("SELECT balance FROM account WHERE id = 'ada'") == 70
    assert shop.one("SELECT balance FROM account WHERE id = 'bob'") == 30


def test_6_prices_come_in_order_and_a_late_write_changes_nothing(program: Make) -> None:
    shop = program("6 Fencing")

    bodies = [{"id": "tea", "price": price} for price in (300, 270, 250)]
    shop.settle("prices", bodies, slot_basis="tea")

    assert shop.one("SELECT price FROM article") == 250
    late = SimpleNamespace(body=bodies[0], fence=1)
    assert not shop.names["set_price"](shop.engine, late)
    assert shop.one("SELECT price FROM article") == 250


def test_6_an_article_that_is_not_there_makes_a_dead_letter_that_says_so(program: Make) -> None:
    shop = program("6 Fencing")
    shop.names["prices"].send({"id": "coffee", "price": 1}, retry="immediate")

    shop.settle("prices", [], count=1)

    (dead,) = shop.client.admin.peek("prices", queue="dead")
    assert dead.failure is not None
    assert "article coffee is not there" in (dead.failure.error or "")


def test_6_without_order_the_one_that_ends_last_is_refused_although_it_is_alive(
    program: Make,
) -> None:
    shop = program("6 Fencing")
    plain = shop.client.topic("plain")
    plain.send_many([rmq.Outgoing({"id": "tea", "price": price}) for price in (300, 250)])
    older, newer = plain.consumer().receive(2)
    write = shop.names["set_price"]

    assert write(shop.engine, newer)
    assert not write(shop.engine, older)
    older.ack()  # it had its lease all the time


def test_a_third_party_is_given_the_same_key_at_every_attempt(program: Make, third: Third) -> None:
    shop = program("A third party")
    third.fails = 1

    shop.settle("charges", [{"id": "c1", "amount": 5}, {"id": "c2", "amount": 6}] * 2)

    assert sorted(third.done) == ["c1", "c2"]


def test_a_third_party_without_keys_is_called_once_and_a_person_is_asked(
    program: Make, third: Third
) -> None:
    shop = program("A third party")
    shop.settle("cheques", [{"id": "c1", "amount": 5}] * 3)
    assert third.done == [5]

    third.fails = 1
    shop.settle("cheques", [{"id": "c2", "amount": 6}], count=4)

    assert third.done == [5, 6]
    (dead,) = shop.client.admin.peek("cheques", queue="dead")
    assert dead.failure is not None
    assert dead.failure.error == "cheque c2: it may have been drawn; ask the provider"

    with shop.engine.begin() as connection:  # the person has asked
        connection.execute(text("UPDATE cheque SET state = 'CONSUMED' WHERE id = 'c2'"))
    shop.client.admin.redrive("cheques")
    shop.settle("cheques", [], count=4)
    assert third.done == [5, 6]
    assert shop.client.admin.stats("cheques")["dead"] == 0


def test_the_outbox_sends_what_is_committed_and_its_consumer_confirms(
    program: Make, third: Third
) -> None:
    shop = program("The outbox")
    shop.names["sell"]({"id": "s1"})
    with pytest.raises(Exception, match="UNIQUE"):
        shop.names["sell"]({"id": "s1"})

    assert outbox.Relay(shop.names["outbox"], shop.engine, shop.client).run_once() == 1
    shop.settle("packing", [], count=1)

    assert third.done == ["s1"]
    assert shop.one("SELECT status FROM rmq_stub") == "confirmed"


@pytest.mark.parametrize(
    ("heading", "example"),
    [("6 Fencing", "fencing.py"), ("Recipes without middleware", "recipes.py")],
)
def test_functions_of_examples_are_shown_as_they_are(heading: str, example: str) -> None:
    file = (ROOT / "examples" / example).read_text()
    shown = [block for block in BLOCKS[heading] if "-> bool:" in block]

    assert shown
    assert [block for block in shown if block.split("\n\n\n")[-1] not in file] == []
    assert [line for block in shown for line in block.splitlines() if line not in file] == []


def test_every_section_with_a_program_is_run() -> None:
    tested = set(re.findall(r'program\("(.*?)"\)', Path(__file__).read_text()))

    assert {one for one, blocks in BLOCKS.items() if blocks} == tested | ELSEWHERE | {FIRST}
    assert PAGE.count("```") == 2 * sum(map(len, BLOCKS.values()))


def test_every_link_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)]+)\)", PAGE)
    assert len(links) > 20
    for link in links:
        name, _, anchor = link.partition("#")
        path = ROOT / "docs" / name if name else ROOT / "docs" / "guarantees.md"
        assert path.exists(), link
        headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE) if anchor else []
        assert not anchor or anchor in [
            re.sub(r"[^a-z0-9 -]", "", one.lower()).replace(" ", "-") for one in headings
        ], link
