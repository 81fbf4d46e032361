"""A consumer of encrypted bodies that is going to be killed; RMQ_KEYS_FILE has its keys."""

from __future__ import annotations

import os
import time

import rmq


def main(url: str, name: str, log: str) -> None:
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with rmq.Client(url) as client, client.topic(name).consumer(lease=1) as consumer:
        while True:
            for delivery in consumer.receive(5, wait=1):
                os.write(out, f"{delivery.body['n']}\n".encode())
                time.sleep(0.004)  # so that most kills hit a message that is in flight
                delivery.ack()
