"""Server: its parts, from start to stop."""

from __future__ import annotations

import ipaddress
import logging
import os
import signal
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from urllib.parse import quote

from rmq.client.client_blocking import Client
from rmq.errors import RMQError
from rmq.features.audit.service import Audits
from rmq.features.dead_letters.jobs.service import Jobs
from rmq.features.dead_letters.service import Expiry
from rmq.features.messages.service import Rollback
from rmq.features.offloaded.service import Offloading
from rmq.features.queries.service import Queries
from rmq.features.schedules.service import Schedules
from rmq.features.topic_admin.service import Resizes, Retention, Sampler
from rmq.features.workers.service import Wanted, WorkerRecords
from rmq.kernel.core.process import STOPPING, handling
from rmq.server.application import make_api, make_application, open_client
from rmq.server.authentication import Authentication, Proxy
from rmq.server.config import ServerConfig
from rmq.server.leadership import Leadership
from rmq.server.listener import Listener
from rmq.server.metrics import ServerMetrics
from rmq.web.service import ServerState, Service, ServiceStatus, ServiceThread
from rmq.web.survey import Survey

log = logging.getLogger("rmq")

READY_S = 20.0  # without an answer of Redis to a script, the server is of no use
RETRY_FOR_S = 2.0  # a service that cannot reach Redis tries again by itself


class Server:
    """Runs the services, and answers over HTTP; for `with`, or `run`.

    Args:
        config: its settings.

    Guarantee:
        Several servers may run. Whatever a server does, another one or a consumer may do at the
        same time: nothing is done twice. A server that dies loses nothing; another one leads
        within 15 s.

    Raises:
        ConfigurationError: the URL cannot work, other machines could ask and no token is set, or a
            package of the extra "server" is missing.
        EmbeddedError: the embedded Redis does not start.
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
        self.queries = Queries(transport, self.survey)
        self.wanted = Wanted(transport, config.prefix, self.survey)
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
            Resizes(transport, config.prefix, self.survey),
            Offloading(transport, self.survey),
        ]
        leads = self.leadership.leads
        self._threads = [ServiceThread(service, leads) for service in services]
        state = ServerState(self.leadership.server, leads, self.services, self._missing)
        metrics = ServerMetrics(
            lambda: self.survey.topics if leads() else {},
            state,
            lambda: self.queries.held if leads() else {},
            self.survey.before,
            lambda: self.wanted.by_topic if leads() else {},
            lambda: self.wanted.long_runs,
        )
        api = make_api(lambda: open_client(url, config.prefix), state, config.redact)
        application = make_application(
            self.hanging, self.problems, metrics, api, authentication, config
        )
        connections = config.connections_max, config.connections_per_address
        self._listener = Listener(application, config.listen, connections, proxy.vouches)

    @property
    def url(self) -> str:
        """Where it answers over HTTP, once it is started."""
        return self._listener.url

    @property
    def redis_url(self) -> str:
        """The Redis that it serves, without a password."""
        return self._client.url

    def _missing(self) -> dict[str, int]:
        """By topic, how many messages the last audit found missing, as far as this server leads."""
        return self.audits.missing if self.leadership.leads() else {}

    def services(self) -> list[ServiceStatus]:
        """Return how each service does."""
        return [thread.status for thread in self._threads]

    def hanging(self) -> list[str]:
        """Return what has ended or hangs in this process; nothing where Redis alone is away."""
        return [
            f"{status.name}: its thread has ended"
            for status in self.services()
            if not status.is_alive
        ]

    def problems(self) -> list[str]:
        """Return why the server is of no use at the moment."""
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
        """Listen, and begin the services.

        Raises:
            ConfigurationError: the address cannot be had.
        """
        self._listener.start()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Finish what goes on, for up to `grace_s`, and let another server lead."""
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
        """Work until SIGTERM or SIGINT, in the main thread.

        Args:
            started: called once, when it works.
            reload: called at each SIGHUP, where there is one.
        """
        signals: SimpleQueue[int] = SimpleQueue()  # no Event: a signal may interrupt its `set`
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
            log.error("the settings stay as they were: %s", error)

    def __enter__(self) -> Server:
        try:
            self.start()
        except BaseException:
            self._client.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
