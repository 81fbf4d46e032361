"""A shop on FastAPI: an order and its message are one transaction, and a worker packs it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import Depends, FastAPI, Header, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

import rmq
from rmq.outbox import Outbox, metadata


class Order(BaseModel):
    """An order in a request, and the body of its message."""

    id: int
    customer: str


engine = create_async_engine("sqlite+aiosqlite:///shop.db")  # or PostgreSQL, MariaDB, MySQL
id, customer = sa.Column("id", sa.Integer, primary_key=True), sa.Column("customer", sa.Text)
table = sa.Table("shop_order", metadata, id, customer)
client = rmq.AsyncClient(retry_for=2)  # RMQ_URL, or redis://localhost:6379/0
orders = client.topic("orders", dedup_window=3600)
outbox = Outbox()


@orders.handler
async def pack(order: Order) -> None:  # a message that does not fit is a dead letter
    print("packed", order.id, "for", order.customer)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)  # or Alembic
    async with client:  # closes its connections at the end
        yield
    await engine.dispose()


async def transaction() -> AsyncIterator[AsyncConnection]:
    async with engine.begin() as connection:
        yield connection


# With the scope "function", the transaction commits before the answer is sent.
Transaction = Annotated[AsyncConnection, Depends(transaction, scope="function")]
Orders = Annotated[rmq.AsyncTopic, Depends(lambda: orders)]
Key = Annotated[str | None, Header()]
app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=201)
async def place(order: Order, connection: Transaction) -> Order:
    await connection.execute(table.insert().values(order.model_dump()))
    await outbox.send_async(connection, "orders", order, confirm=False)
    return order


@app.post("/gifts", status_code=202)
async def give(order: Order, orders: Orders, idempotency_key: Key = None) -> dict[str, Any]:
    result = await orders.send(order, dedup_key=idempotency_key)
    return {"id": str(result.id), "status": result.status}


@app.exception_handler(rmq.Unavailable)
@app.exception_handler(rmq.OutcomeUnknown)
async def queue_is_away(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": "try again"}, 503, headers={"Retry-After": "5"})
