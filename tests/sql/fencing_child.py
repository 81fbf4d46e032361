"""A worker that dawdles, for a test that stops it.

Its handler says which delivery it has, waits for a file, writes the price, and says what became of
it.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from sqlalchemy import create_engine

import rmq
from examples import fencing


def main(text: str) -> int:
    task = json.loads(text)
    engine = create_engine(task["db"])
    client = rmq.Client(task["url"])
    write = fencing.set_price if task["fenced"] else fencing.set_price_unfenced

    @client.topic(task["topic"]).handler(ordered=True, lease=1, concurrency=1)
    def change(d: rmq.Delivery) -> None:
        print(f"has {d.body['price']}", flush=True)
        while not Path(task["gate"]).exists():
            time.sleep(0.01)
        print("wrote" if write(engine, d) else "could not write", d.body["price"], flush=True)

    return rmq.Worker(client).run()
