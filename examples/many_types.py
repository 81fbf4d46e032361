"""Sixty types of work in three topics, and a handler for each type.

    python examples/many_types.py

A topic is a way of working: the length of a lease, the order, and which messages wait for which. A
type is a kind of work and has a handler. The last message has a type that this program does not
handle, so it waits for a program that does.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import rmq

Body = dict[str, Any]

client = rmq.Client(f"embedded://{tempfile.gettempdir()}/rmq-many-types")
mails = client.topic("types-mails", retry=rmq.Exponential(1, 600))
billing = client.topic("types-billing", slots=8, lease=60)
catalogue = client.topic("types-catalogue")

LETTERS = [
    f"mail.{name}"
    for name in (
        "welcome", "goodbye", "receipt", "reminder", "invoice", "newsletter", "password", "login",
        "shipped", "delivered", "delayed", "returned", "refunded", "review", "birthday", "coupon",
        "restock", "wishlist", "survey", "closing",
    )
]  # fmt: skip
ENTRIES = {
    +1: ["invoice", "fee", "interest", "deposit", "surcharge", "duty", "tax", "tip", "rent",
         "toll"],
    -1: ["payment", "refund", "credit", "discount", "voucher", "bonus", "writeoff", "rebate",
         "return", "chargeback"],
}  # fmt: skip
FIELDS = [
    "name", "price", "stock", "image", "brand", "size", "colour", "weight", "rating", "supplier",
    "tags", "video", "manual", "origin", "season", "bundle", "badge", "weblink", "seller", "notes",
]  # fmt: skip

done: Counter[str] = Counter()  # by type
balance: Counter[str] = Counter()  # by customer


@mails.handler(type=LETTERS, concurrency=4)  # one handler for twenty types that differ in a text
def write(letter: Body, d: rmq.Delivery) -> None:
    done[str(d.type)] += 1


def booking(sign: int) -> Callable[[Body, rmq.Delivery], None]:
    """Return the handler of entries that raise or lower a balance."""

    def book(entry: Body, d: rmq.Delivery) -> None:
        balance[entry["customer"]] += sign * entry["cents"]
        done[str(d.type)] += 1

    return book


for sign, names in ENTRIES.items():  # entries of one customer are booked in order
    billing.handler(type=[f"entry.{name}" for name in names], ordered=True)(booking(sign))


def updating(field: str) -> Callable[[Body, rmq.Delivery], None]:
    """Return the handler of one field of a product."""

    def update(product: Body, d: rmq.Delivery) -> None:
        done[str(d.type)] += 1

    return update


for field in FIELDS:  # a separate handler for each type
    catalogue.handler(type=f"product.{field}", concurrency=1)(updating(field))


@catalogue.handler  # the default, for all other types and for messages without a type
def reindex(product: Body) -> None:
    done["default"] += 1


def send_all() -> int:
    """Send a message of each type, a message without a type, and a message without a handler."""
    for letter in LETTERS:
        mails.send({"to": "ann@example.org"}, type=letter)
    for sign, names in ENTRIES.items():
        billing.send_many(
            rmq.Outgoing({"customer": "ann", "cents": 50 - 10 * sign}, type=f"entry.{name}",
                         slot_basis="ann")
            for name in names
        )  # fmt: skip
    for field in FIELDS:
        catalogue.send({"id": 7}, type=f"product.{field}")
    catalogue.send({"id": 8})
    mails.send({"to": "bob@example.org"}, type="mail.pigeon")
    return len(LETTERS) + len(FIELDS) + sum(map(len, ENTRIES.values())) + 1


def main() -> None:
    """Send everything, let a worker handle it, and print the results."""
    expected = send_all()
    with rmq.Worker(client):
        until = time.monotonic() + 30
        while done.total() < expected and time.monotonic() < until:
            time.sleep(0.05)
    print(f"{done.total()} messages of {len(done) - 1} types handled, and {done['default']} other")
    print(f"the balance of ann is {balance['ann'] / 100:.2f}")
    for message in client.admin.peek(mails.name):
        print(f"{message.type} waits for a worker with a handler for it")
        mails.cancel(message.id)


if __name__ == "__main__":
    main()
