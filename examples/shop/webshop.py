"""A shop, end to end: FastAPI takes orders, PostgreSQL keeps them, and a worker does the rest."""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import Depends, FastAPI, HTTPException
from pydantic import BaseModel, Field

import rmq
from rmq import ledger, outbox
from rmq.ledger import exactly_once

REMIND_S = 3600  # a customer is asked for a review an hour after the payment
VIP, NORMAL = 900, 500  # priorities: the highest goes first


class Order(BaseModel):
    """An order in a request, and the body of its message."""

    id: int
    customer: str
    mail: str
    cents: int = Field(gt=0)
    vip: bool = False


class Mail(BaseModel):
    """A mail that a worker sends."""

    to: str
    text: str


class Statement(BaseModel):
    """A request to write what a customer has paid until this day."""

    day: str
    customer: str


# --- the database ---------------------------------------------------------------------------------

engine = sa.create_engine(os.environ.get("RMQ_DATABASE_URL", "sqlite:///shop.db"))
tables = sa.MetaData()
order_table = sa.Table(
    "shop_order", tables,
    sa.Column("id", sa.BigInteger, primary_key=True),
    sa.Column("customer", sa.String(64)), sa.Column("mail", sa.String(200)),
    sa.Column("cents", sa.BigInteger), sa.Column("vip", sa.Boolean),
    sa.Column("paid", sa.Boolean, default=False),
)  # fmt: skip
statement_table = sa.Table(
    "shop_statement", tables,
    sa.Column("day", sa.String(10), primary_key=True),
    sa.Column("customer", sa.String(64), primary_key=True), sa.Column("cents", sa.BigInteger),
)  # fmt: skip


def create_tables() -> None:  # a real shop does this with Alembic
    for each in (tables, outbox.metadata, ledger.metadata):
        each.create_all(engine)


# --- the queue ------------------------------------------------------------------------------------

client = rmq.Client(retry_for=2)  # RMQ_URL, or redis://localhost:6379/0
charges = client.topic("charges", groups=rmq.Groups())  # one of a customer at a time, in order
mails = client.topic("mails", max_retries=3, retry=rmq.Levels((10, 60, 600)))
statements = client.topic("statements")
reports = client.topic("reports")
shop_outbox = outbox.Outbox()


@charges.handler
@exactly_once(engine, key=lambda order: order["id"])
def charge(order: dict[str, Any], connection: sa.Connection) -> None:
    """Charge an order. The charge and the two mails are one transaction."""
    paid = order_table.update().where(order_table.c.id == order["id"]).values(paid=True)
    connection.execute(paid)
    mail = Mail(to=order["mail"], text=f"Order {order['id']} is paid: {order['cents']} cents")
    shop_outbox.send(connection, "mails", mail, confirm=False)
    review = Mail(to=order["mail"], text=f"How was order {order['id']}?")
    shop_outbox.send(connection, "mails", review, delay=REMIND_S, confirm=False)


@mails.handler
def send_mail(mail: Mail) -> None:
    if "@" not in mail.to:
        raise rmq.Reject(f"{mail.to!r} is not an address")  # a dead letter, without retries
    print(f"mail to {mail.to}: {mail.text}")


@statements.handler(concurrency=4)
def write_statement(asked: Statement) -> None:
    """Write what a customer has paid. A second run writes the same row."""
    c = order_table.c
    total = sa.select(sa.func.sum(c.cents)).where(c.customer == asked.customer, c.paid)
    with engine.begin() as connection:
        connection.execute(statement_table.delete().where(
            statement_table.c.day == asked.day, statement_table.c.customer == asked.customer
        ))  # fmt: skip
        cents = connection.scalar(total) or 0
        row = {"day": asked.day, "customer": asked.customer, "cents": cents}
        connection.execute(statement_table.insert(), row)


@reports.handler
def report(day: str, d: rmq.Delivery) -> None:
    """Run once, when all statements of the day have ended."""
    with engine.connect() as connection:
        cents = connection.scalar(
            sa.select(sa.func.sum(statement_table.c.cents)).where(statement_table.c.day == day)
        )
    done = d.batch_counts.succeeded if d.batch_counts else 0
    print(f"report of {day}: {done} statements, {cents} cents", flush=True)


# --- the web --------------------------------------------------------------------------------------


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    create_tables()
    yield
    client.close()
    engine.dispose()


def transaction() -> Iterator[sa.Connection]:
    with engine.begin() as connection:
        yield connection


# With the scope "function", the transaction commits before the answer is sent.
Transaction = Annotated[sa.Connection, Depends(transaction, scope="function")]
app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=201)
def place(order: Order, connection: Transaction) -> Order:
    connection.execute(order_table.insert(), order.model_dump())
    priority = VIP if order.vip else NORMAL
    shop_outbox.send(
        connection, "charges", order, group=order.customer, priority=priority, confirm=False
    )
    return order


@app.get("/orders/{number}")
def show(number: int, connection: Transaction) -> dict[str, Any]:
    row = connection.execute(order_table.select().where(order_table.c.id == number)).one_or_none()
    if row is None:
        raise HTTPException(404, "no such order")
    return dict(row._mapping)


@app.post("/reports/{day}", status_code=202)
def begin_report(day: str, connection: Transaction) -> dict[str, int]:
    customers = connection.scalars(sa.select(order_table.c.customer).distinct()).all()
    with client.batch(f"report-{day}", then=(reports, rmq.Outgoing(day))) as batch:
        batch.send_many(statements, [
            rmq.Outgoing(Statement(day=day, customer=each), dedup_key=f"{day}/{each}")
            for each in customers
        ])  # fmt: skip
    return {"statements": len(customers)}
