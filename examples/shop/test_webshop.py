"""Tests of the shop without Redis and without PostgreSQL."""

from collections.abc import Iterator
from typing import Any

import pytest
import webshop as shop

from rmq import ledger, outbox
from rmq.outbox import Relay
from rmq.testing import Broker

ANN = {"id": 1, "customer": "ann", "mail": "ann@example.org", "cents": 500}
BOB = {"id": 2, "customer": "bob", "mail": "bob", "cents": 700, "vip": True}


@pytest.fixture
def broker() -> Iterator[Broker]:
    shop.create_tables()
    with Broker() as made, made.adopting(shop.client):
        yield made
    for each in (shop.tables, outbox.metadata, ledger.metadata):
        each.drop_all(shop.engine)


def place(**order: Any) -> None:
    with shop.engine.begin() as connection:
        shop.place(shop.Order(**order), connection)


def relay() -> None:
    """Send what the outbox has, as `rmq outbox run` does."""
    while Relay(shop.shop_outbox, shop.engine, shop.client).run_once():
        pass


def test_a_vip_is_charged_first_and_a_wrong_address_is_a_dead_letter(broker: Broker) -> None:
    place(**ANN)
    place(**BOB)
    relay()

    assert [run.body["id"] for run in broker.drain("charges")] == [2, 1]
    relay()
    broker.assert_sent("mails", lambda mail: mail["to"] == "bob", count=2)
    broker.drain("mails")
    (dead,) = broker.dead("mails")
    assert dead.failure is not None
    assert dead.failure.error == "'bob' is not an address"
    with shop.engine.connect() as connection:
        assert [shop.show(number, connection)["paid"] for number in (1, 2)] == [True, True]


def test_the_report_comes_once_when_all_statements_have_ended(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    place(**ANN)
    place(**BOB)
    relay()
    broker.drain("charges")
    with shop.engine.connect() as connection:
        for _ in range(2):  # a repeated request changes nothing
            assert shop.begin_report("2026-11-30", connection) == {"statements": 2}
    broker.drain("statements", "reports", raises=True)

    assert capsys.readouterr().out == "report of 2026-11-30: 2 statements, 1200 cents\n"
