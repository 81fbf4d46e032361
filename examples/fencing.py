"""A worker that lost its lease cannot overwrite the writes of its successor.

New prices of an article come as messages, in order. One consumer receives a price and is paused.
Its lease expires. A second consumer takes over, and writes this price and the next price. Then the
first consumer resumes and tries to write. A later delivery has written before, so nothing changes.

    python examples/fencing.py                on SQLite and a private redis-server
    python examples/fencing.py --db URL --url redis://...
    python examples/fencing.py --unfenced     the same without the condition: ends with 1
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable

from sqlalchemy import Engine, create_engine, text

import rmq

SCHEMA = (
    "DROP TABLE IF EXISTS article",
    "CREATE TABLE article (id VARCHAR(20) PRIMARY KEY, price INTEGER NOT NULL, "
    "fence BIGINT NOT NULL DEFAULT 0)",
    "INSERT INTO article (id, price) VALUES ('tea', 280)",
)
FENCED = text("UPDATE article SET price = :price, fence = :fence WHERE id = :id AND fence < :fence")
UNFENCED = text("UPDATE article SET price = :price WHERE id = :id")


def set_price(engine: Engine, d: rmq.Delivery) -> bool:
    """Write a price unless a later delivery has written a price; return whether it was written."""
    with engine.begin() as connection:
        done = connection.execute(FENCED, {**d.body, "fence": d.fence})
    return done.rowcount == 1


def set_price_unfenced(engine: Engine, d: rmq.Delivery) -> bool:
    """Write a price without the condition, to show the mistake."""
    with engine.begin() as connection:
        done = connection.execute(UNFENCED, d.body)
    return done.rowcount == 1


def create(engine: Engine) -> None:
    """Create the table with one article."""
    with engine.begin() as connection:
        for statement in SCHEMA:
            connection.execute(text(statement))


def price(engine: Engine) -> int:
    """Return the current price of tea."""
    with engine.connect() as connection:
        found: int = connection.execute(text("SELECT price FROM article")).scalar_one()
    return found


def play(engine: Engine, prices: rmq.Topic, write: Callable[[Engine, rmq.Delivery], bool]) -> int:
    """Let a consumer write too late; return the final price of tea, which should be 250."""
    for one in (300, 250):
        prices.send({"id": "tea", "price": one}, slot_basis="tea")
    slow = prices.consumer(ordered=True, lease=1)
    (late,) = slow.receive()
    print(f"slow   has {told(late)}, and falls asleep")

    with prices.consumer(ordered=True) as quick:
        for _ in range(2):
            (d,) = quick.receive(wait=10)  # the first message comes when the lease of slow expires
            print(f"quick  {'wrote' if write(engine, d) else 'could not write'} {told(d)}")
            d.ack()

    print(f"slow   {'wrote' if write(engine, late) else 'could not write'} {told(late)}")
    try:
        late.ack()
    except rmq.LeaseLost:
        print("slow   learns from its ack that it had lost its lease")
    return price(engine)


def told(d: rmq.Delivery) -> str:
    return f"{d.body['price']}, fence {d.fence}"


def main() -> int:
    asked = argparse.ArgumentParser(description="A worker that is too late, and its fence.")
    asked.add_argument("--unfenced", action="store_true", help="leave the condition out")
    asked.add_argument("--db", help="SQLAlchemy URL; a table `article` there is replaced")
    asked.add_argument("--url", help="Redis")
    options = asked.parse_args()
    with tempfile.TemporaryDirectory() as home:
        engine = create_engine(options.db or f"sqlite:///{home}/prices.db")
        create(engine)
        with rmq.Client(options.url or f"embedded://{home}/redis") as client:
            write = set_price_unfenced if options.unfenced else set_price
            found = play(engine, client.topic("example.prices", retry="immediate"), write)
        engine.dispose()
    print(f"tea costs {found}" + ("" if found == 250 else ", and should cost 250"))
    return int(found != 250)


if __name__ == "__main__":
    sys.exit(main())
