"""Three database changes that happen once, however often their message is delivered.

Each change is one transaction of a handler and needs no feature of RMQ. A copy of the message, or a
delivery after a lost ack, finds that the change was made.

    python examples/recipes.py                on SQLite and a private redis-server
    python examples/recipes.py --db URL --url redis://...
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from typing import Any

from sqlalchemy import Connection, create_engine, text

import rmq

SCHEMA = (
    "DROP TABLE IF EXISTS article",
    "DROP TABLE IF EXISTS payment",
    "DROP TABLE IF EXISTS member",
    "DROP TABLE IF EXISTS token",
    "CREATE TABLE article (id VARCHAR(20) PRIMARY KEY, price INTEGER, version INTEGER)",
    "CREATE TABLE payment (id VARCHAR(20) PRIMARY KEY, member VARCHAR(20), amount INTEGER)",
    "CREATE TABLE member (id VARCHAR(20) PRIMARY KEY, balance INTEGER, points INTEGER)",
    "CREATE TABLE token (token VARCHAR(40) PRIMARY KEY)",
    "INSERT INTO article VALUES ('tea', 280, 7)",
    "INSERT INTO member VALUES ('ada', 1000, 0)",
)


def change_price(connection: Connection, body: dict[str, Any]) -> bool:
    """Precondition: the message names the version of the row that it changes."""
    changed = connection.execute(
        text(
            "UPDATE article SET price = :price, version = version + 1 "
            "WHERE id = :id AND version = :version"
        ),
        body,
    )
    return changed.rowcount == 1


def pay(connection: Connection, body: dict[str, Any]) -> bool:
    """Unique constraint: inserting the row decides. Of two at once, one fails and is retried."""
    query = "SELECT id FROM payment WHERE id = :id"
    if connection.execute(text(query), body).first():
        return False
    connection.execute(
        text("INSERT INTO payment (id, member, amount) VALUES (:id, :member, :amount)"), body
    )
    connection.execute(
        text("UPDATE member SET balance = balance - :amount WHERE id = :member"), body
    )
    return True


def add_points(connection: Connection, body: dict[str, Any]) -> bool:
    """Token: the sender stored it; the transaction of the change deletes it."""
    spent = connection.execute(text("DELETE FROM token WHERE token = :token"), body)
    if spent.rowcount == 1:
        connection.execute(text("UPDATE member SET points = points + :points WHERE id = :id"), body)
    return spent.rowcount == 1


RECIPES = {"change_price": change_price, "pay": pay, "add_points": add_points}
MESSAGES: dict[str, dict[str, Any]] = {
    "change_price": {"id": "tea", "price": 300, "version": 7},
    "pay": {"id": "order 5", "member": "ada", "amount": 30},
    "add_points": {"id": "ada", "points": 3, "token": "5c1f"},
}


def create(connection: Connection) -> None:
    """Create the tables, and store the token that is sent with a message."""
    for statement in SCHEMA:
        connection.execute(text(statement))
    connection.execute(text("INSERT INTO token VALUES (:token)"), MESSAGES["add_points"])


def state(connection: Connection) -> tuple[int, ...]:
    """Return the price of tea, and Ada's balance and points."""
    query = "SELECT price, balance, points FROM article, member"
    return tuple(connection.execute(text(query)).one())


def main() -> int:
    asked = argparse.ArgumentParser(description="Three changes that come once.")
    asked.add_argument("--db", help="SQLAlchemy URL; the tables of this example are replaced there")
    asked.add_argument("--url", help="Redis")
    options = asked.parse_args()
    with tempfile.TemporaryDirectory() as home:
        engine = create_engine(options.db or f"sqlite:///{home}/shop.db")
        with engine.begin() as connection:
            create(connection)
        with rmq.Client(options.url or f"embedded://{home}/redis") as client:
            changes = client.topic("example.recipes")
            for name, body in MESSAGES.items():
                changes.send_many([rmq.Outgoing([name, body])] * 3)
            with changes.consumer() as consumer:
                for d in consumer.receive(100):
                    name, body = d.body
                    with d, engine.begin() as connection:
                        changed = RECIPES[name](connection, body)
                        print(f"{name:12}  {'done' if changed else 'done before'}")
        with engine.connect() as connection:
            found = state(connection)
        engine.dispose()
    print("tea costs {}; Ada has {} and {} points".format(*found))
    return int(found != (300, 970, 3))


if __name__ == "__main__":
    sys.exit(main())
