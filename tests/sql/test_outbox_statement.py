"""`Outbox.statement`: the row of a message, by a cursor of the driver; and the message's id."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

import rmq
from rmq.errors import ConfigurationError, InvalidValue, PayloadTooLarge
from rmq.outbox import Outbox, Relay, message_id, metadata
from tests.databases import Database

OF_THE_CALL = ("seq", "id", "created", "resend_at", "due_ms")
MESSAGES = [
    rmq.Outgoing({"text": "ä%s"}, priority=900, headers={"a": "b"}, type="x/y", keep_result=60),
    rmq.Outgoing(1, delay=3600, slot_basis="customer:42", retry=rmq.Levels((1, 2)), expires=5),
    rmq.Outgoing([], at=2_000_000_000_000, group="ann", max_runtime=3),
]


@pytest.mark.parametrize("confirm", [True, False])
def test_a_statement_writes_the_same_row_as_send(database: Database, confirm: bool) -> None:
    engine = database.engine()
    metadata.create_all(engine)
    outbox = Outbox()
    names = [name for name in rmq.Outgoing.__dataclass_fields__ if name not in ("body", "id")]
    with engine.begin() as connection:
        cursor = connection.connection.cursor()
        for message in MESSAGES:
            options = {name: getattr(message, name) for name in names}
            given = {name: value for name, value in options.items() if value is not None}
            given = {k: v for k, v in given.items() if k not in ("merge", "extend")}
            outbox.send(connection, "t", message.body, confirm=confirm, **given)
            stub = outbox.statement(database.dialect, "t", message, confirm=confirm)
            sql = stub.sql.replace("%s", "?") if database.dialect == "sqlite" else stub.sql
            cursor.execute(sql, stub.parameters)
            ours, theirs = [
                dict(row)
                for row in connection.execute(
                    sa.select(metadata.tables["rmq_stub"]).order_by(sa.text("seq DESC")).limit(2)
                ).mappings()
            ]
            assert ours["id"] == str(stub.id)
            for name in ("resend_at", "due_ms"):
                assert abs(ours[name] - theirs[name]) < 60_000
            for name in OF_THE_CALL:
                del ours[name], theirs[name]
            assert ours == theirs


def test_a_statement_refuses_what_an_outbox_cannot_send() -> None:
    outbox = Outbox(max_body=100)

    with pytest.raises(ConfigurationError, match="'oracle'; give one of postgresql"):
        outbox.statement("oracle", "t", rmq.Outgoing(1))
    for message in (rmq.Outgoing(1, dedup_key="a"), rmq.Outgoing(1, merge_key="a", time_range=1)):
        with pytest.raises(InvalidValue, match="dedup_key"):
            outbox.statement("sqlite", "t", message)
    with pytest.raises(PayloadTooLarge):
        outbox.statement("sqlite", "t", rmq.Outgoing("x" * 100))


def test_the_id_of_a_message_is_known_before_the_relay_sends_it(
    database: Database, client: rmq.Client, name: str
) -> None:
    engine = database.engine()
    metadata.create_all(engine)
    outbox, topic = Outbox(), client.topic(name, slots=16)
    with engine.begin() as connection:
        plain = outbox.send(connection, name, "plain", confirm=False)
        based = outbox.send(connection, name, "based", slot_basis="ann", confirm=False)

    ids = [message_id(client, name, plain), message_id(client, name, str(based), "ann")]
    assert [topic.get(id) for id in ids] == [None, None]
    Relay(outbox, engine, client).run_once()
    found = [topic.get(id) for id in ids]
    assert [each.body for each in found if each is not None] == ["plain", "based"]
