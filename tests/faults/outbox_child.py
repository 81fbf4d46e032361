"""A part of the shop in a process of its own.

Its task is the JSON in the first argument: the role (produce, relay, consume), and at which step it
kills itself with -9, when that is passed for which time:

    producer open        stubs are written, nothing is committed
    producer committed   the commit is answered, nothing else has happened
    relay unmarked       Redis has answered, nothing is marked
    resender unmarked    the same of a resend
    consumer within      the handler has written
    consumer committed   its transaction is committed, the stub is not confirmed

When the storm is in a hurry, it does so at the next pass (`storm.Hurry`).

What happens is written into a history: what a producer's transactions came to, each message that
Redis was asked to take and its answer, what it said where messages are, and each fault.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa

import rmq
from rmq.kernel.core import codec
from rmq.ledger import exactly_once
from rmq.outbox import Relay, Resender, stub_id
from rmq.sql.ledger.exactly_once import ExactlyOnce
from rmq.sql.outbox import relay_queries
from rmq.sql.outbox.dispatch import Dispatcher
from rmq.sql.outbox.lost import LossDetector
from tests.faults import outbox_mutants, outbox_shop
from tests.faults.storm import Hurry
from tests.faults.worker_child import Book

STEPS = (
    "producer open", "producer committed", "relay unmarked", "resender unmarked",
    "consumer within", "consumer committed",
)  # fmt: skip
MOMENT_S = 0.05  # until a signal to itself has reached all threads
ROLLED_BACK, BASED, POSTPONED, HELD = 0.15, 0.3, 0.05, 0.1  # shares
BASES = 3
MOST_DELAY_S = 2.0


class Faults:
    """The step at which this process kills itself."""

    def __init__(self, step: str, after: int, book: Book, hurry: Hurry) -> None:
        self._step = step
        self._hurry = hurry
        self._left = after
        self._book = book
        self._lock = threading.Lock()

    def reach(self, step: str, stubs: Sequence[str], beside: Sequence[str] = ()) -> None:
        """A step is reached, with these in hand. `beside`: what other threads have in hand."""
        if step != self._step:
            return
        with self._lock:  # nobody else goes on
            self._left -= 1
            if self._left <= 0 or self._hurry:
                if beside:
                    self._book.write("uncounted", stubs=list(beside), sure=False)
                self._book.write("fault", name=f"kill {step}", stubs=list(stubs))
                os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(MOMENT_S)


# --- producer ------------------------------------------------------------------------------------


class Undone(Exception):
    """A transaction is rolled back."""


def produce(task: dict[str, Any], faults: Faults, book: Book) -> int:
    """Place orders until so many are committed, or the file `enough` is there."""
    engine = sa.create_engine(task["database"], pool_pre_ping=True)
    box = outbox_shop.outbox()
    rng = random.Random(task["seed"])
    done = number = 0
    while done < task["orders"] and not Path(task["enough"]).exists():
        number += 1
        stubs: list[str] = []
        undone = rng.random() < ROLLED_BACK
        try:
            with engine.begin() as connection:
                for n in range(rng.randint(1, 3)):
                    options = _options(rng, task["stem"])
                    topic = task["held"] if rng.random() < HELD else task["work"]
                    key = f"{task['stem']}-{number}-{n}"
                    stubs.append(outbox_shop.place(connection, box, topic, key, **options))
                faults.reach("producer open", stubs)
                if undone:
                    raise Undone
            faults.reach("producer committed", stubs)
            fate = "committed"
            done += len(stubs)
        except Undone:
            fate = "rolled back"
        except sa.exc.DBAPIError:
            fate = "unknown"
            time.sleep(0.1)
        book.write("ended", fate=fate, stubs=stubs)
        time.sleep(task["pace_s"])
    return 0


def _options(rng: random.Random, stem: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if rng.random() < BASED:
        options["slot_basis"] = f"{stem}-{rng.randrange(BASES)}"
    if rng.random() < POSTPONED:
        options["delay"] = rng.uniform(0.2, MOST_DELAY_S)
    return options


# --- relay and resender --------------------------------------------------------------------------


class Recorder(rmq.Interceptor):
    """Writes down what Redis answered to each message; the thread's name says who asked."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self._here = threading.local()
        self._in_hand: dict[str, list[str]] = {}  # by the name of a thread

    def takes(self, stubs: Sequence[str]) -> None:
        """This thread begins to send these."""
        self.sent.clear()
        self._in_hand[threading.current_thread().name] = list(stubs)

    def is_done(self) -> None:
        """Forget what this thread has sent: it is counted, or given up."""
        self.takes(())

    def beside(self) -> list[str]:
        """Return what the other threads send and count just now; they die with this process."""
        mine = threading.current_thread().name
        return [one for name, some in self._in_hand.items() if name != mine for one in some]

    @property
    def sent(self) -> list[str]:
        """The messages that this thread has sent and not yet counted."""
        if not hasattr(self._here, "sent"):
            self._here.sent = []
        return self._here.sent  # type: ignore[no-any-return]

    def after_send(self, topic: str, message: rmq.Outgoing, result: Any) -> None:
        stub = str(stub_id(message.id or b""))
        answer = result.status if isinstance(result, rmq.SendResult) else "unknown"
        if answer != "unknown":
            self.sent.append(stub)
        self.book.write("told", who=threading.current_thread().name, stub=stub, answer=answer)


def watch(faults: Faults, recorder: Recorder) -> None:
    """Have sends, their counts, and where messages were found told."""
    send, mark, ask = Dispatcher.send, relay_queries.mark, LossDetector._ask

    def sends(self: Dispatcher, these: Any, *what: Any) -> Any:
        recorder.takes([one.id for one in these])
        return send(self, these, *what)

    def marks(*what: Any) -> int:
        faults.reach(
            f"{threading.current_thread().name} unmarked", recorder.sent, recorder.beside()
        )
        return mark(*what)

    def asks(self: LossDetector, topic: str, these: Any) -> Any:
        found = ask(self, topic, these)
        places = ["?" if one is None else one.queue for one in found]
        at = dict(zip([due.id for due in these], places, strict=True))
        recorder.book.write("looked", at=at)
        return found

    Dispatcher.send, relay_queries.mark, LossDetector._ask = sends, marks, asks  # type: ignore[method-assign]
    for kind, name in ((Relay, "_relay_batch"), (Resender, "_send")):
        setattr(kind, name, _accounted(getattr(kind, name), recorder))


def _accounted(work: Any, recorder: Recorder) -> Any:
    """Tell what was sent and, because of an error, not counted; or perhaps not."""

    def accounted(self: Any, *what: Any) -> Any:
        try:
            return work(self, *what)
        except Exception as error:
            sure = not isinstance(error, sa.exc.DBAPIError)
            recorder.book.write("uncounted", stubs=list(recorder.sent), sure=sure)
            raise
        finally:
            recorder.is_done()

    return accounted


def relay(task: dict[str, Any], faults: Faults, book: Book) -> int:
    """A relay and a resender beside it, as `rmq outbox run` has them."""
    recorder = Recorder(book)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    engine = sa.create_engine(task["database"], pool_pre_ping=True)
    client = rmq.Client(task["url"], retry_for=5, timeout=5, interceptors=[recorder])
    box = outbox_shop.outbox()
    parts = {
        "relay": Relay(box, engine, client, batch=50),
        "resender": Resender(box, engine, client),
    }
    watch(faults, recorder)
    for name in (task["work"], task["held"]):
        client.topic(name, **outbox_shop.SETTINGS).open()
        parts["relay"]._dispatcher.context(name, codec.by_name("json").number)
    threads = [
        threading.Thread(target=part.run, args=(stop,), name=name) for name, part in parts.items()
    ]
    for one in threads:
        one.start()
    book.write("ready")
    for one in threads:
        one.join()
    return 0


# --- consumer ------------------------------------------------------------------------------------


def consume(task: dict[str, Any], faults: Faults, book: Book) -> int:
    """A worker that packs orders, exactly once, and confirms them."""
    hands = task["concurrency"] * len(task["topics"]) + 2
    engine = sa.create_engine(
        task["database"], pool_pre_ping=True, pool_size=hands, max_overflow=hands
    )
    client = rmq.Client(task["url"], retry_for=5, timeout=5)
    run = ExactlyOnce.run

    def runs(self: ExactlyOnce, one: Any, inner: Any) -> bool:
        fresh = run(self, one, inner)
        if fresh:
            faults.reach("consumer committed", [str(stub_id(one.id))])
        return fresh

    ExactlyOnce.run = runs  # type: ignore[method-assign]

    box = outbox_shop.outbox()

    def handler() -> Any:
        def pack(body: dict, d: rmq.Delivery, connection: sa.Connection) -> None:
            stub = str(stub_id(d.id))
            book.write("begin", stub=stub)
            outbox_shop.pack(connection, body, stub)
            faults.reach("consumer within", [stub])

        return box.confirms(engine)(exactly_once(engine)(pack))

    for name in task["topics"]:
        topic = client.topic(name, **outbox_shop.SETTINGS)
        topic.handler(concurrency=task["concurrency"])(handler())
    return rmq.Worker(client, grace=10, heartbeat="thread").run()


def main(text: str) -> int:
    task: dict[str, Any] = json.loads(text)
    logging.basicConfig(level="WARNING", format="%(asctime)s %(threadName)s %(message)s")
    book = Book(task["history"])
    faults = Faults(task["step"], task["after"], book, Hurry(Path(task["hurry"])))
    for mutant in task["mutants"]:
        getattr(outbox_mutants, mutant)(faults)
    role = {"produce": produce, "relay": relay, "consume": consume}[task["role"]]
    return role(task, faults, book)
