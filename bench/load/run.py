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
MAX_RETRIES = 4  # few, so that some messages fail every time and become dead letters
RETRY = rmq.Exponential(0.05, 1.0)  # short waits, so that retries happen during the run
PEEK_MAX = 1_000_000  # largest number of messages of one peek
PUT_BACK_S = 60.0  # delay of a released message that this run did not send
EXIT_OPTIONS, EXIT_ACCOUNT = 2, 3  # locust's own 1 means: requests failed


def refuse(option: str, text: object) -> NoReturn:
    """End the process with the error of a bad option."""
    print(f"locustfile: argument {option}: {text}", file=sys.stderr)
    sys.exit(EXIT_OPTIONS)


class Run:
    """The run of a locust environment; in the web interface, its runs one after another."""

    _runs: ClassVar[dict[int, Run]] = {}  # by id of the environment

    @classmethod
    def of(cls, environment: Environment) -> Run:
        """Return the run of an environment."""
        return cls._runs[id(environment)]

    def __init__(self, environment: Environment, options: Options) -> None:
        if not isinstance(environment.runner, LocalRunner):
            parsed = environment.parsed_options
            if parsed and parsed.processes and parsed.worker:
                sys.exit(EXIT_OPTIONS)  # a child of --processes; its parent prints the error
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
            environment.stop_timeout = options.turn_s + 5.0  # users finish their current batch

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
                "a load test would consume; name an empty topic, or look at this one with "
                f"rmq peek {self.options.topic}, and purge it if it is not needed",
            )
        self.skew_s = self._skew()

    def connect(self) -> rmq.Client:
        """Return a client, which is closed at the latest at the end of the run."""
        client = rmq.Client(self.url)
        self.clients.append(client)
        return client

    def disconnect(self, client: rmq.Client) -> None:
        """Close a client."""
        client.close()
        with contextlib.suppress(ValueError):
            self.clients.remove(client)

    def topic(self, client: rmq.Client) -> rmq.Topic:
        """Return the run's topic for a client."""
        return client.topic(
            self.options.topic,
            codec="bytes",
            slots=self.options.slots,
            max_retries=MAX_RETRIES,
            retry=RETRY,
        )

    def _skew(self) -> float:
        """Return how far the server's clock is ahead, s; 0 if it is less than half a round trip."""
        samples = []
        for _ in range(5):
            asked = time.time()
            server = float(self.client.server_info("server")["server_time_usec"]) / 1e6
            answered = time.time()
            samples.append((answered - asked, server - (asked + answered) / 2))
        round_trip, ahead = min(samples)
        return ahead if abs(ahead) > round_trip / 2 else 0.0

    def server_time(self) -> float:
        """Return the server's time, epoch s, which decides due times and leases."""
        return time.time() + self.skew_s

    def put_back(self, delivery: rmq.Delivery) -> None:
        """Release a message that this run did not send."""
        with contextlib.suppress(rmq.RMQError):
            delivery.release(delay=PUT_BACK_S)

    def waiting(self) -> int:
        """Return how many messages wait or are in flight, by Redis's count."""
        stats = self.client.admin.stats(self.options.topic)
        return sum(stats[name] for name in WAITING)

    def start(self) -> None:
        """Begin a new log before users start."""
        self.message_log, self.account = MessageLog(), None

    def finish(self) -> None:
        """Drain the topic after the users have stopped, and make the account."""
        try:
            began = time.monotonic()
            self._drain()
            self.account = self._account(time.monotonic() - began)
        except rmq.RMQError as error:
            print(f"locustfile: no account can be made: {error}", file=sys.stderr)
            self.environment.process_exit_code = EXIT_ACCOUNT
            return
        if self.account.wrong:
            self.environment.process_exit_code = EXIT_ACCOUNT

    def _drain(self) -> None:
        """Receive and settle the remaining messages, until the topic is empty or time is up."""
        message_log, until = self.message_log, time.monotonic() + self.options.patience_s
        with self.topic(self.client).consumer() as consumer:
            while self.waiting() and time.monotonic() < until:
                ours, serials = [], []
                for delivery in consumer.receive(BATCH_MAX, wait=0.2):
                    if seen := message_log.receive(delivery, self.server_time()):
                        ours.append(delivery)
                        serials.append(seen.serial)
                    else:
                        self.put_back(delivery)
                message_log.acking(serials)
                lost = {id(delivery) for delivery in consumer.ack(ours)} if ours else set()
                for delivery, serial in zip(ours, serials, strict=True):
                    message_log.acked(serial, id(delivery) in lost)
                message_log.drained += len(ours) - len(lost)

    def _bodies(self, place: Literal["store", "prepare", "dead"]) -> list[object]:
        messages = self.client.admin.peek(self.options.topic, PEEK_MAX, place)
        return [message.body for message in messages]

    def _account(self, drain_s: float) -> Account:
        message_log = self.message_log
        waiting = message_log.stored([*self._bodies("store"), *self._bodies("prepare")])
        dead = message_log.stored(self._bodies("dead"))
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
        """Close every client and the private server, and delete its directory."""
        for client in self.clients:
            with contextlib.suppress(rmq.RMQError):
                client.close()
        self.clients = []
        if self.home is not None:
            shutil.rmtree(self.home, ignore_errors=True)
        self._runs.pop(id(self.environment), None)
