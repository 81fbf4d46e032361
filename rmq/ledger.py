"""The ledger: a database table of finished work, so that each message takes effect only once.

There are two ways to use it. `Ledger` is a store for `@rmq.idempotent`. Use it instead of
`rmq.Claims` if Redis must not be the only record of finished work. `exactly_once` guarantees more,
because the row in the ledger and the handler's own writes commit in one transaction.

    from rmq.ledger import exactly_once, once, once_async

    @orders.handler
    @exactly_once(engine, key=lambda order: order["id"])
    def book(order, connection):
        connection.execute(insert(bookings).values(order=order["id"]))

`once` opens such a transaction for one step of a handler, see `Delivery.step`.

RMQ supports PostgreSQL, MySQL, MariaDB and SQLite through SQLAlchemy 2. Install the extra `sql` and
a driver. `rmq ledger create` creates the table. For Alembic, add `rmq.ledger.metadata` to
`target_metadata`.
"""

from rmq.sql.ledger.admin import Entry, look, look_async, purge, purge_async
from rmq.sql.ledger.exactly_once import exactly_once, once, once_async
from rmq.sql.ledger.rows import metadata
from rmq.sql.ledger.store import Ledger

__all__ = [
    "Entry", "Ledger", "exactly_once", "look", "look_async", "metadata", "once",
    "once_async", "purge", "purge_async",
]  # fmt: skip
