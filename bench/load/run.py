"""A run: its server, topic and clients, the drain at its end, and the verdict."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
import time
from typing import ClassVar, Literal, NoReturn

from locust.env import Environment
from locust.runners import LocalRunner

import rmq
from bench.load.account import Account
from bench.load.message_log import MERGED, SETTLED, MessageLog
from bench.load.options import BATCH_MAX, Options

WAITING = ("retries", "priority", "due", "later", "in_flight")  # of admin.stats
MAX_RETRIES = 4  # so that some messages do fail every time, and die
RETRY = rmq.Exponential(0.05, 1.0)  # soon, so that retries happen in the run and not after it
PEEK_MAX = 1_000_000  # what one peek takes at most
PUT_BACK_S = 60.0  # how long a message that is none of ours is left alone
EXIT_OPTIONS, EXIT_ACCOUNT = 2, 3  # locust's own 1: requests failed


def refuse(option: str, text: object) -> NoReturn:
    """End the process as a bad option does."""
    print(f"locustfile: argument {option}: {text}", file=sys.stderr)
    sys.exit(EXIT_OPTIONS)


class Run:
    """A locust environment's run, or runs one after the other in the web interface."""

    _runs: ClassVar[dict[int, Run]] = {}  # by id of the environment

    @classmethod
    def of(cls, environment: Environment) -> Run:
        """The run of an environment."""
        return cls._runs[id(environment)]

    def __init__(self, environment: Environment, options: Options) -> None:
        if not isinstance(environment.runner, LocalRunner):
            parsed = environment.parsed_options
            if parsed and parsed.processes and parsed.worker:
                sys.exit(EXIT_OPTIONS)  # a child of --processes; its parent says why
            refuse(
                "--processes/--master/--worker",
                "the log of a run is kept in one process; leave it out, or run several load "
                "tests side by side, each with a --topic of its own",
            )
        self._runs[id(environment)] = self
        self.environment, self.options, self.message_log = environment, options, MessageLog()
        self.account: Account | None = None
        self.clients: list[rmq.Client] = []
        self.home = None if options.url else tempfile.mkdtemp(prefix="rmq-load-")
        self.url = options.url or f"embedded://{self.home}"
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        if not environment.stop_timeout:
            environment.stop_timeout = options.turn_s + 5.0  # users finish the batch in hand

    def _open(self) -> None:
        try:
            self.client = self.connect()
            self.client.ping()
        except rmq.RMQError as error:
            if self.options.url:
                refuse("--rmq-url", f"found {self.options.url!r}: {error}")
            refuse("--rmq-url", f"found none, and no private server starts: {error}")
        try:
            topic = self.topic(self.client)
            topic.open()
        except rmq.SettingsMismatch as error:
            refuse("--topic/--slots", error)
        except rmq.RMQError as error:
            refuse("--topic", error)
        if waiting := self.waiting():
            refuse(
                "--topic",
                f"found {waiting} messages in {self.options.topic!r} on {self.client.url}, which "
                "a load test would consume; name a topic that is empty, or look at this one with "
                f"rmq peek {self.options.topic}, and purge it if nobody needs it",
            )
        self.skew_s = self._skew()

    def connect(self) -> rmq.Client:
        """A client, closed at the end of the run if not before."""
        client = rmq.Client(self.url)
        self.clients.append(client)
        return client

    def disconnect(self, client: rmq.Client) -> None:
        """Close a client."""
        client.close()
        with contextlib.suppress(ValueError):
            self.clients.remove(client)

    def topic(self, client: rmq.Client) -> rmq.Topic:
        """The run's topic, by a client."""
        return client.topic(
            self.options.topic,
            codec="bytes",
            slots=self.options.slots,
            max_retries=MAX_RETRIES,
            retry=RETRY,
        )

    def _skew(self) -> float:
        """How far the server's clock is ahead of ours, s; 0 where the round trip hides it."""
        tries = []
        for _ in range(5):
            asked = time.time()
            server = float(self.client.server_info("server")["server_time_usec"]) / 1e6
            answered = time.time()
            tries.append((answered - asked, server - (asked + answered) / 2))
        round_trip, ahead = min(tries)
        return ahead if abs(ahead) > round_trip / 2 else 0.0

    def server_time(self) -> float:
        """The server's time, epoch s; due times and leases go by it."""
        return time.time() + self.skew_s

    def put_back(self, delivery: rmq.Delivery) -> None:
        """Hand back a message that someone else has sent to the topic."""
        with contextlib.suppress(rmq.RMQError):
            delivery.release(delay=PUT_BACK_S)

    def waiting(self) -> int:
        """How many messages wait or are in flight, as Redis counts them."""
        stats = self.client.admin.stats(self.options.topic)
        return sum(stats[name] for name in WAITING)

    def start(self) -> None:
        """Begin a new log, for users that are about to start."""
        self.message_log, self.account = MessageLog(), None

    def finish(self) -> None:
        """Drain the topic once the users have stopped, and draw up the account."""
        try:
            began = time.monotonic()
            self._drain()
            self.account = self._account(time.monotonic() - began)
        except rmq.RMQError as error:
            print(f"locustfile: no account can be drawn up: {error}", file=sys.stderr)
            self.environment.process_exit_code = EXIT_ACCOUNT
            return
        if self.account.wrong:
            self.environment.process_exit_code = EXIT_ACCOUNT

    def _drain(self) -> None:
        """Receive and settle what the users have left, until the topic is empty or time is up."""
        message_log, until = self.message_log, time.monotonic() + self.options.patience_s
        with self.topic(self.client).consumer() as consumer:
            while self.waiting() and time.monotonic() < until:
                ours, serials = [], []
                for one in consumer.receive(BATCH_MAX, wait=0.2):
                    if seen := message_log.receive(one, self.server_time()):
                        ours.append(one)
                        serials.append(seen.serial)
                    else:
                        self.put_back(one)
                message_log.acking(serials)
                lost = {id(one) for one in consumer.ack(ours)} if ours else set()
                for one, serial in zip(ours, serials, strict=True):
                    message_log.acked(serial, id(one) in lost)
                message_log.drained += len(ours) - len(lost)

    def _bodies(self, place: Literal["store", "prepare", "dead"]) -> list[object]:
        found = self.client.admin.peek(self.options.topic, PEEK_MAX, place)
        return [message.body for message in found]

    def _account(self, drain_s: float) -> Account:
        message_log = self.message_log
        waiting = message_log.found([*self._bodies("store"), *self._bodies("prepare")])
        dead = message_log.found(self._bodies("dead"))
        lost = message_log.close(waiting | dead)
        settled, merged = message_log.count(SETTLED), message_log.count(MERGED)
        return Account(
            sent=settled + merged + len(waiting) + len(dead) + len(lost),
            merged=merged,
            unconfirmed=len(message_log.state) - 1 - message_log.confirmed,
            received=message_log.received,
            nacked=message_log.nacked,
            settled=settled,
            drained=message_log.drained,
            dead=len(dead),
            waiting=len(waiting),
            strangers=message_log.strangers,
            early=message_log.early,
            duplicates=message_log.duplicates,
            lost=len(lost),
            drain_s=drain_s,
            one_clock=self.skew_s == 0.0,
        )

    def close(self) -> None:
        """Close every client, and with them a private server; leave nothing of it on disk."""
        for client in self.clients:
            with contextlib.suppress(rmq.RMQError):
                client.close()
        self.clients = []
        if self.home is not None:
            shutil.rmtree(self.home, ignore_errors=True)
        self._runs.pop(id(self.environment), None)
