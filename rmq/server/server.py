"""Start, run and stop the parts of the server process."""

from __future__ import annotations

import ipaddress
import logging
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from urllib.parse import quote

from rmq.client.client_blocking import Client
from rmq.errors import RMQError
from rmq.features.audit.service import Audits
from rmq.features.batches.service import Batches
from rmq.features.dead_letters.jobs.service import Jobs
from rmq.features.dead_letters.service import Expiry
from rmq.features.doctor.service import Problems
from rmq.features.events.service import Events
from rmq.features.follow_ups.service import FollowUps
from rmq.features.messages.service import Rollback
from rmq.features.offloaded.service import Offloading
from rmq.features.schedules.service import Schedules
from rmq.features.spark.service import Queries
from rmq.features.topic_admin.service import Resizes, Retention, Sampler
from rmq.features.workers.service import Wanted, WorkerRecords
from rmq.http_framework.service import ServerState, Service, ServiceStatus, ServiceThread
from rmq.http_framework.survey import Survey
from rmq.kernel.core.stop_signals import STOPPING, handling
from rmq.server.application import make_api, make_application, open_client
from rmq.server.authentication import Authentication, Proxy
from rmq.server.config import ServerConfig
from rmq.server.leadership import Leadership
from rmq.server.listener import Listener
from rmq.server.metrics import ServerMetrics

log = logging.getLogger("rmq")

READY_S = 20.0  # if Redis answers no script for this time, the server is not ready
RETRY_FOR_S = 2.0  # short: a service repeats a failed run anyway


class Server:
    """Runs the services of the server, and serves HTTP.

    Use it in a `with` statement, or call `run`.

    Args:
        config: Settings of the server.

    Guarantee:
        You can run several servers. If another server or a consumer does the same work at the same
        time, the work takes effect once. If a server dies, no data is lost, and another server
        becomes the leader within 15 s.

    Raises:
        ConfigurationError: The URL is not valid, the server would be open to other machines without
            a token, or a package of the extra "server" is missing.
        EmbeddedError: The embedded Redis does not start.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        token = config.read_token()
        mode = config.choose_auth(token)
        self.asks_for_tokens = mode == "token"
        proxies = tuple(map(ipaddress.ip_network, config.proxy_addresses))
        proxy = Proxy(proxies, config.proxy_user_header, config.proxy_role_header or "")
        authentication = Authentication(mode, token, proxy)
        url = config.url
        if config.embedded is not None:
            url = "embedded://" + quote(os.path.abspath(config.embedded))
        self._client = Client(url, prefix=config.prefix, retry_for=RETRY_FOR_S)
        transport = self._client._transport
        self.leadership = Leadership(transport, config.prefix)
        self.survey = Survey(transport, config.prefix)
        self._jobs = Jobs(transport, config.prefix)
        self.audits = Audits(transport, self.survey)
        self.batches = Batches(transport, config.prefix)
        self.doctor = Problems(transport, config.prefix, self.survey)
        self.queries = Queries(transport, self.survey)
        self.wanted = Wanted(transport, self.survey)
        services: list[Service] = [
            self.leadership,
            self.survey,
            Rollback(transport, self.survey),
            Retention(transport, self.survey),
            Schedules(transport, config.prefix),
            Sampler(transport, self.survey),
            self._jobs,
            Expiry(transport, self.survey),
            self.audits,
            self.queries,
            WorkerRecords(transport, config.prefix),
            self.wanted,
            Resizes(transport, self.survey),
            Offloading(transport, self.survey),
            FollowUps(transport, self.survey),
            self.batches,
            Events(transport, self.survey),
            self.doctor,
        ]
        leads = self.leadership.leads
        self._threads = [ServiceThread(service, leads) for service in services]
        state = ServerState(
            self.leadership.server, leads, self.services, self._missing, self.doctor.latest
        )
        metrics = ServerMetrics(
            lambda: self.survey.topics if leads() else {},
            state,
            lambda: self.queries.held if leads() else {},
            self.survey.before,
            lambda: self.wanted.by_topic if leads() else {},
            lambda: self.wanted.long_runs,
            lambda: self.batches.open if leads() else 0,
        )
        api = make_api(lambda: open_client(url, config.prefix), state, config.redact, config.polls)
        application = make_application(
            self.hanging, self.problems, metrics, api, authentication, config
        )
        connections = config.connections_max, config.connections_per_address
        self._listener = Listener(application, config.listen, connections, proxy.vouches)

    @property
    def url(self) -> str:
        """URL of the HTTP server after its start."""
        return self._listener.url

    @property
    def redis_url(self) -> str:
        """URL of Redis, without a password."""
        return self._client.url

    def _missing(self) -> dict[str, int]:
        return self.audits.missing if self.leadership.leads() else {}

    def services(self) -> list[ServiceStatus]:
        """Return the status of each service."""
        return [thread.status for thread in self._threads]

    def hanging(self) -> list[str]:
        """Return the names of the parts of this process that hang or have ended unexpectedly.

        If only Redis is unavailable, the list is empty.
        """
        return [
            f"{status.name}: its thread has ended"
            for status in self.services()
            if not status.is_alive
        ]

    def problems(self) -> list[str]:
        """Return the reasons why the server cannot work at the moment."""
        if self.leadership.refuses_writes:
            return ["Redis refuses all writes: it cannot write to its disk; make room there"]
        answered_at = self.leadership.answered_at
        if answered_at is None:
            return ["Redis has not run a script yet"]
        silent_s = time.monotonic() - answered_at
        if silent_s > READY_S:
            return [f"Redis has run no script for {silent_s:.0f} s"]
        return self.hanging()

    def start(self) -> None:
        """Listen, and start the services.

        Raises:
            ConfigurationError: The address is not available.
        """
        self._listener.start()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Finish running work within `grace_s` seconds, and give up the leadership."""
        until = time.monotonic() + self.config.grace_s
        for thread in self._threads:
            thread.ask_to_stop()
        self._jobs.stop(max(0.1, until - time.monotonic()))
        self._listener.stop(max(0.1, until - time.monotonic()))
        late = [
            thread.service.name
            for thread in self._threads
            if not thread.join(max(0.1, until - time.monotonic()))
        ]
        if late:
            log.warning("stopped before these services had ended: %s", ", ".join(late))
        self.leadership.release()
        self._client.close()

    def run(
        self,
        started: Callable[[], object] | None = None,
        reload: Callable[[], object] | None = None,
    ) -> None:
        """Run in the main thread until SIGTERM or SIGINT.

        Args:
            started: Function that the server calls once when it is ready.
            reload: Function that the server calls after each SIGHUP.
        """
        _raise_file_limit()
        signals: SimpleQueue[int] = SimpleQueue()  # not an Event: a signal may interrupt its `set`
        hangup = getattr(signal, "SIGHUP", None)  # not on Windows
        numbers = STOPPING if hangup is None else (*STOPPING, hangup)
        with handling(numbers, lambda number, _: signals.put(number)), self:
            if started is not None:
                started()
            while True:
                try:
                    number = signals.get(timeout=0.5)
                except Empty:
                    continue
                if number != hangup:
                    break
                if reload is not None:
                    self._reload(reload)

    def _reload(self, reload: Callable[[], object]) -> None:
        try:
            reload()
        except RMQError as error:
            log.error("the settings were not changed: %s", error)

    def __enter__(self) -> Server:
        try:
            self.start()
        except BaseException:
            self._client.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _raise_file_limit() -> None:
    """Allow this process to open as many files as the system permits.

    Each connection needs an open file.
    """
    with suppress(ImportError, OSError, ValueError):  # not on Windows
        import resource

        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
