"""A process that is going to be killed; `running` starts it.

It tells what it does in lines appended to a file, one write each, so that a kill loses none and no
pipe stays open.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import rmq
from tests.forkserver import Forked


@contextlib.contextmanager
def running(what: str, url: str, topic: str, log: Path) -> Iterator[Forked]:
    """The child, from the parent's side."""
    with open(log.with_suffix(".err"), "wb") as errors:
        process = Forked("tests.faults.child", what, url, topic, str(log), stderr=errors)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for_lines(log: Path, word: str, count: int = 1, within: float = 60.0) -> list[list[str]]:
    """Wait for lines of a child that begin with a word; return them, split."""
    until = time.monotonic() + within
    while True:
        text = log.read_text() if log.exists() else ""
        lines = [line.split() for line in text.splitlines() if line.split()[0] == word]
        if len(lines) >= count:
            return lines
        if time.monotonic() > until:
            errors = log.with_suffix(".err").read_text()
            raise AssertionError(f"the child logged {text!r}, not {count} times {word!r}: {errors}")
        time.sleep(0.005)


def main(what: str, url: str, name: str, log: str) -> None:
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def log_line(*words: object) -> None:
        os.write(out, (" ".join(map(str, words)) + "\n").encode())

    topic = rmq.Client(url).topic(name)
    if what == "produce":
        for number in range(1_000_000):
            id = topic.new_id()
            log_line("attempt", number, id)
            topic.send({"n": number}, id=id)
            log_line("answer", number, id)
    if what == "wait":
        for delivery in topic.consumer(lease=5):
            log_line("deliver", delivery.body["n"], delivery.attempt)
            delivery.ack()
    mode = "at_most_once" if what == "pop" else "at_least_once"
    consumer = topic.consumer(lease=1, mode=mode)  # type: ignore[arg-type]
    topic.open()
    before = time.monotonic()  # one clock for all processes
    got = consumer.receive(10, wait=10)
    log_line("leased", before)
    for one in got:
        log_line("deliver", one.body["n"], one.attempt)
    log_line("working")
    if what == "stall":  # stopped here for longer than the lease, then goes on
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            time.sleep(0.01)
        try:
            one.ack()
            log_line("settled")
        except rmq.LeaseLost:
            log_line("lost")
    time.sleep(60)
