"""A shop on Starlette: an order and its message are one transaction, and a worker packs it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import rmq
from rmq.outbox import Outbox, metadata

engine = create_async_engine("sqlite+aiosqlite:///shop.db")  # or PostgreSQL, MariaDB, MySQL
id, customer = sa.Column("id", sa.Integer, primary_key=True), sa.Column("customer", sa.Text)
table = sa.Table("shop_order", metadata, id, customer)
client = rmq.AsyncClient(retry_for=2)  # RMQ_URL, or redis://localhost:6379/0
orders = client.topic("orders", dedup_window=3600)
outbox = Outbox()


@orders.handler
async def pack(order: dict[str, Any]) -> None:
    print("packed", order["id"], "for", order["customer"])


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[dict[str, Any]]:
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)  # or Alembic
    async with client:  # closes its connections at the end
        yield {"orders": orders}  # request.state.orders
    await engine.dispose()


async def place(request: Request) -> JSONResponse:
    order = await request.json()
    async with engine.begin() as connection:  # commits before the answer
        await connection.execute(table.insert().values(order))
        await outbox.send_async(connection, "orders", order, confirm=False)
    return JSONResponse(order, 201)


async def give(request: Request) -> JSONResponse:
    key = request.headers.get("Idempotency-Key")
    result = await request.state.orders.send(await request.json(), dedup_key=key)
    return JSONResponse({"id": str(result.id), "status": result.status}, 202)


async def queue_is_away(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": "try again"}, 503, headers={"Retry-After": "5"})


app = Starlette(
    routes=[Route("/orders", place, methods=["POST"]), Route("/gifts", give, methods=["POST"])],
    exception_handlers={rmq.Unavailable: queue_is_away, rmq.OutcomeUnknown: queue_is_away},
    lifespan=lifespan,
)
