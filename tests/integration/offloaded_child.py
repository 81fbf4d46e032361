"""A producer or a consumer of offloaded, encrypted bodies that is going to be killed."""

from __future__ import annotations

import hashlib
import os
import random
import time

import fsspec.implementations.local  # noqa: F401 - before the fork

import rmq
from rmq.kernel.core import codec, object_store, record


def main(role: str, url: str, name: str, log: str) -> None:
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    store = os.environ["RMQ_STORES"]
    with rmq.Client(url) as client:
        topic = client.topic(name, codec=rmq.Offloaded(store, 1000, rmq.Encrypted()))
        if role == "producer":
            produce(topic, out)
        consume(topic, out, role)


def body_of(number: str) -> dict[str, str]:
    text = number * random.randint(1, 500)
    return {"n": number, "text": text, "sha": hashlib.sha256(text.encode()).hexdigest()}


def produce(topic: rmq.Topic, out: int) -> None:
    """Send, and write down what was sent."""
    stem = os.urandom(4).hex()
    for count in range(10_000_000):
        numbers = [f"{stem}-{count}-{i}" for i in range(random.randint(1, 4))]
        topic.send_many([rmq.Outgoing(body_of(number)) for number in numbers])
        os.write(out, "".join(f"sent {number}\n" for number in numbers).encode())
        time.sleep(0.005)


def consume(topic: rmq.Topic, out: int, role: str) -> None:
    """Write down what comes, and settle it: most is acked, some is rejected."""
    with topic.consumer(lease=1) as consumer:
        while True:
            for delivery in consumer.receive(5, wait=1):
                body = delivery.body
                is_whole = hashlib.sha256(body["text"].encode()).hexdigest() == body["sha"]
                os.write(out, f"{'whole' if is_whole else 'damaged'} {body['n']}\n".encode())
                if role == "early":
                    remove(delivery)
                # So that most kills hit a message that is in flight.
                time.sleep(0.05 if role == "early" else 0.002)
                delivery.reject("on purpose") if random.random() < 0.1 else delivery.ack()


def remove(delivery: rmq.Delivery) -> None:
    """Remove the object before the ack: the negative control."""
    entry = record.read(delivery._inner.record)
    packed = codec.reference_of(entry.codec, entry.body)
    if packed is not None:
        object_store.remove_all([object_store.Reference.read(packed)])
