"""An online shop on RMQ, for screenshots: an hour of work behind it, and more going on.

Everything is done by clients, at times that `commands.set_clock` gives, and the history is written
by the survey and the sampler of the server: no page shows what has not happened.
"""

from __future__ import annotations

import linecache
import math
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any
from unittest import mock

import rmq
from rmq.features.topic_admin.service import Sampler
from rmq.features.workers import flows
from rmq.features.workers.status import HandlerStatus, write_status
from rmq.http_framework.survey import Survey
from rmq.kernel.core import ids
from rmq.kernel.topic import clock as command_clock

PAST_S, STEP_S = 70 * 60, 10
HANDLERS = "/srv/shop/handlers.py"  # where tracebacks say that the handlers are
SOURCE = """\
def capture(order):
    return charge(order["amount"], order["card"])


def charge(amount, card):
    if amount <= 0:
        raise ValueError(f"amount is {amount}, expected a positive number")
    return gateway(card)


def gateway(card):
    if card is None:
        raise KeyError("card")
    raise ConnectionError("gateway.example:443 did not answer within 30 s")
"""
TOPICS: dict[str, dict[str, Any]] = {
    "orders": {"slots": 4},
    "payments": {"slots": 4, "retry": "immediate", "max_retries": 2, "lease": 600},
    "mail": {"slots": 2}, "newsletter": {"slots": 2}, "reports": {},
    "invoices": {"groups": rmq.Groups(order=False, concurrency=50)},
    "stock": {"slots": 2},
}  # fmt: skip
PER_STEP = {
    "orders": 20, "payments": 14, "mail": 26, "newsletter": 3, "reports": 0.1, "invoices": 5,
    "stock": 11,
}  # fmt: skip
TYPES = {
    "orders": ["order.placed", "order.paid", "order.returned"], "payments": ["payment.capture"],
    "mail": ["mail.receipt", "mail.shipped"], "newsletter": ["mail.newsletter"],
    "reports": ["report.daily"], "invoices": ["invoice.pdf"], "stock": ["stock.reserve"],
}  # fmt: skip
CARDS = ("4111", "5500", "3400")
TENANTS = ("berlin", "porto", "osaka", "lima")


def handlers() -> dict[str, Callable[[Any], Any]]:
    """The functions of the shop, as if they stood in a file of its own."""
    linecache.cache[HANDLERS] = (len(SOURCE), None, SOURCE.splitlines(keepends=True), HANDLERS)
    made: dict[str, Any] = {}
    exec(compile(SOURCE, HANDLERS, "exec"), made)
    return made


def _fails(order: dict[str, Any]) -> bool:
    """Return whether the payment of an order fails: its gateway answers 16 of 17."""
    return order["amount"] <= 0 or order["card"] is None or order["order"] % 17 == 0


class Shop:
    """The producers and consumers of the shop, in one process.

    Args:
        client: of its Redis.
        prefix: of the keys.
    """

    def __init__(self, client: rmq.Client, prefix: str) -> None:
        self.client, self.prefix = client, prefix
        self._random = random.Random(7)
        self._topics = {name: client.topic(name, **TOPICS[name]) for name in TOPICS}
        self._consumers = {name: topic.consumer() for name, topic in self._topics.items()}
        self._capture = handlers()["capture"]
        self._number = 41_000
        self._began = time.monotonic()
        self._taken = dict.fromkeys(TOPICS, 0)
        self._failed = dict.fromkeys(TOPICS, 0)

    def live_an_hour(self) -> None:
        """Do the work of 70 minutes, at times that are over; then time goes on by itself."""
        survey = Survey(self.client._transport, self.prefix)
        sampler = Sampler(self.client._transport, survey)
        end = time.time()
        with mock.patch.object(ids, "time") as clock:
            for step in range(PAST_S // STEP_S):
                now_us = round((end - PAST_S + step * STEP_S) * 1e6)
                command_clock.set_clock(now_us)
                clock.time_ns.return_value = now_us * 1000
                self.work(step / 60)
                survey.run_once()
                sampler.run_once()
        command_clock.set_clock(None)

    def work(self, minute: float) -> None:
        """Send and handle what comes in ten seconds."""
        for name, mean in PER_STEP.items():
            wave = 1 + 0.4 * math.sin(minute * 6) + self._random.uniform(-0.2, 0.2)
            count = int(mean * wave + self._random.random())
            if count:
                self._topics[name].send_many([self._message(name) for _ in range(count)])
            is_late = name == "mail" and 6 < minute < 8  # its consumers are away for a while
            self._handle(name, 0 if is_late else 2 if name == "newsletter" else 45)

    def _message(self, name: str) -> rmq.Outgoing:
        self._number += 1
        chance = self._random.random()
        body = {
            "order": self._number, "amount": -15 if chance < 0.04 else round(9 + 90 * chance, 2),
            "card": None if chance > 0.98 else self._random.choice(CARDS), "currency": "EUR",
            "items": [{"sku": f"SKU-{self._random.randint(100, 999)}", "count": 1}],
        }  # fmt: skip
        headers = {"tenant": self._random.choice(TENANTS), "trace": f"{self._number:016x}"}
        delay = 1800 if name == "mail" and 0.5 < chance < 0.52 else None
        return rmq.Outgoing(
            body, headers=headers, type=self._random.choice(TYPES[name]), delay=delay,
            group=headers["tenant"] if name == "invoices" else None,
        )  # fmt: skip

    def _handle(self, name: str, most: int) -> None:
        if not most:
            return
        taken = self._consumers[name].receive(most)
        self._taken[name] += len(taken)
        for delivery in taken:
            if name != "payments" or not _fails(delivery.body):
                delivery.ack()
                continue
            try:
                self._capture(delivery.body)
            except Exception as error:
                own = error.__traceback__  # the frame of this file, which is not of the shop
                self._failed[name] += 1
                delivery.nack(error=error.with_traceback(own and own.tb_next), delay=0)

    def report_workers(self, running: list[tuple[str, int, int]]) -> None:
        """Report three worker processes, as workers do."""
        for place, names in enumerate((("orders", "stock"), ("payments", "invoices"), ("mail",))):
            self._report(place, names, running if "payments" in names else [])

    def _report(self, place: int, names: tuple[str, ...], runs: list[tuple[str, int, int]]) -> None:
        def write(now_ms: int) -> str:
            handlers = [
                HandlerStatus(
                    name, f"handle_{name}", 8, len(runs) if name == names[0] else 0, 0,
                    {"received": self._taken[name], "nack": self._failed[name]},
                )
                for name in names
            ]  # fmt: skip
            return write_status(
                at_ms=now_ms, host=f"shop-worker-{place + 1}", pid=17 + place, process=None,
                version=rmq.__version__, age_ms=PAST_S * 1000, keep_ms=60_000, handlers=handlers,
                runs=runs,
            )  # fmt: skip

        flow = flows.report(self.prefix, f"5e0f21a{place}", write, 60_000)
        self.client._transport.run(flow)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Go on with the work in a thread, a tenth of it each second."""
        stop = Event()
        running = self._slow_payments()

        def run() -> None:
            while not stop.wait(1):
                for name in ("orders", "mail", "stock", "invoices"):
                    count = max(1, int(PER_STEP[name] / 10))
                    self._topics[name].send_many([self._message(name) for _ in range(count)])
                    self._handle(name, 45)
                ages = [
                    (id, index, age + round(1000 * (time.monotonic() - self._began)))
                    for id, index, age in running
                ]
                self.report_workers(ages)

        thread = Thread(target=run, daemon=True)
        self.report_workers(running)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _slow_payments(self) -> list[tuple[str, int, int]]:
        """Take a few payments, which are not settled: they are in flight."""
        self._topics["payments"].send_many([self._message("payments") for _ in range(20)])
        taken = self._consumers["payments"].receive(4, wait=5)
        return [(str(each.id), 0, 1000 + 900 * n) for n, each in enumerate(taken)]


def _fill_batches(client: rmq.Client) -> None:
    """Open batches: one whose members have ended, a cancelled one, and one in the middle."""
    topic = client.topic("reports")
    for name, count, acked in (
        ("import-5", 120, 120),
        ("import-6", 90, 40),
        ("import-7", 400, 268),
    ):
        then = (client.topic("mail"), rmq.Outgoing({"import": name}, delay=86_400))
        with client.batch(name, then=then, timeout=7200) as batch:
            batch.send_many(topic, [rmq.Outgoing({"row": n}) for n in range(count)])
            with topic.consumer() as consumer:
                taken = consumer.receive(acked)
                for delivery in taken[:7]:
                    delivery.reject("no such SKU")
                consumer.ack(taken[7:])
            if name == "import-6":
                batch.cancel()


def furnish(client: rmq.Client) -> dict[str, str]:
    """Do what people do: pause, purge, schedule, start jobs, hand out tokens; ids by name."""
    admin = client.admin
    admin.topic_pause("newsletter", by="ann", why="the unsubscribe link is broken: ticket 481")
    reports, mail = client.topic("reports"), client.topic("mail", **TOPICS["mail"])
    body = {"report": "sales"}
    reports.every("sales-daily", cron="0 6 * * mon-fri", tz="Europe/Berlin", body=body).declare()
    reports.every("stock-levels", every=900, body={"report": "stock"}).declare()
    reports.every("tax-monthly", cron="0 3 1 * *", body={"report": "tax"}).declare()
    admin.schedule_pause("reports", "tax-monthly")
    letter = {"to": "customer 4711", "template": "reminder"}
    waiting = mail.send(letter, delay=7200, type="mail.reminder")
    invoices = client.topic("invoices", **TOPICS["invoices"])
    for tenant, count in (("tokyo", 5400), ("oslo", 120), ("quito", 60)):
        invoices.send_many([rmq.Outgoing({"order": n}, group=tenant) for n in range(count)])
    admin.group_pause("invoices", "oslo")
    stock = client.topic("stock", **TOPICS["stock"])
    query = stock.query("0f" * 16, "spark-driver-0:4040")
    stock.send_many([rmq.Outgoing({"sku": f"SKU-{n}", "count": n}) for n in range(30)])
    query.take({}, 20)
    _fill_batches(client)
    dead = admin.dead_letters("payments", limit=50).messages
    negative = [
        each for each in dead if "amount is" in (each.failure.error if each.failure else "")
    ]
    admin.purge("payments", "dead", ids=[each.id for each in negative[:6]], keep=604_800)
    gateway = {"filter": 'error contains "did not answer"'}
    count = admin.redrive("payments", **gateway, dry_run=True).matched
    done = admin.job_start(
        "payments",
        conditions={"filter": "error contains KeyError and header.tenant=lima"},
        by="ben",
    )
    admin.job_run(done.id)
    job = admin.job_start("payments", conditions=gateway, rate=1, by="ann", expected=count)
    for name, role in (("ben", "operator"), ("grafana", "viewer")):
        admin.token_create(name, role, sees_bodies=name == "ben", expires=90 * 86_400)
    return {
        "token": admin.token_create("ann", "admin").text, "job": job.id,
        "waiting": str(waiting.id), "dead": str(negative[-1].id),
    }  # fmt: skip
