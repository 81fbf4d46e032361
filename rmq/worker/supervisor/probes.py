"""Probes: a small HTTP endpoint for monitoring a worker.

/readyz   200 while the worker receives and settles messages, otherwise 503
/livez    503 if something hangs in the process and a restart may help, otherwise 200
/metrics  metrics of prometheus_client in this process, or 404 if it is not installed

During an outage of Redis, /livez still returns 200, because a restart of the worker would not help.

The endpoint runs in a daemon thread, and uses only the standard library. It shows no data of
messages.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rmq.errors import ConfigurationError
from rmq.kernel.core import packages
from rmq.worker.watchdog import Health

REQUEST_S = 5.0  # longest time in which a client must send its request
MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"


class Probes:
    """Serves the HTTP endpoint of the probes until the process ends.

    Args:
        host, port: Address to listen on. With port 0, the system chooses a free port.
        health: Function that returns the health of the worker.

    Raises:
        OSError: The address is in use, or belongs to another machine.
    """

    def __init__(self, host: str, port: int, health: Callable[[], Health]) -> None:
        self._health = health
        self._metrics = Metrics() if has_prometheus() else None
        kind = socket.AF_INET6 if ":" in host else socket.AF_INET
        server = type("Server", (ThreadingHTTPServer,), {"address_family": kind})
        self._server: ThreadingHTTPServer = server((host, port), self._handler())
        self._server.daemon_threads = True
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, name="rmq-probes", daemon=True).start()

    def answer(self, path: str) -> tuple[int, str, bytes]:
        """Return the status, content type and body of the response for a path."""
        if path == "/metrics" and self._metrics is not None:
            return 200, self._metrics.content_type, self._metrics.text()
        health = self._health()
        fine = {"/readyz": health.ok, "/livez": health.alive}.get(path)
        if fine is None:
            reply: dict[str, Any] = {"paths": ["/livez", "/readyz", "/metrics"]}
            if path == "/metrics":
                reply = {"error": f"for metrics: {packages.install('prometheus')}"}
            return 404, "application/json", _json(reply)
        return (
            200 if fine else 503, "application/json",
            _json({"ok": fine, "problems": health.problems}),
        )  # fmt: skip

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        answer = self.answer

        class Handler(BaseHTTPRequestHandler):
            timeout = REQUEST_S

            def version_string(self) -> str:
                return "rmq"

            def do_GET(self) -> None:
                status, kind, body = answer(self.path.partition("?")[0])
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            do_HEAD = do_GET

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler


def _json(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"


# --- metrics -------------------------------------------------------------------------------------


class Metrics:
    """The metrics of prometheus_client.

    If several processes share a directory, the metrics cover all these processes.
    """

    def __init__(self) -> None:
        self._library = _prometheus("prometheus_client")
        self._registry = self._library.REGISTRY
        if directory := os.environ.get(MULTIPROCESS):
            if not os.path.isdir(directory):
                raise ConfigurationError(
                    f"{MULTIPROCESS}: there is no directory {directory!r}; make an empty one "
                    "before the worker starts"
                )
            self._registry = self._library.CollectorRegistry()
            _prometheus("prometheus_client.multiprocess").MultiProcessCollector(self._registry)
        self.content_type: str = self._library.CONTENT_TYPE_LATEST

    def text(self) -> bytes:
        """Return the metrics as text in the format of Prometheus."""
        return bytes(self._library.generate_latest(self._registry))


class SharedMetrics:
    """A directory in which several processes store metrics of prometheus_client."""

    def __init__(self) -> None:
        self._made = ""
        if has_prometheus() and not os.environ.get(MULTIPROCESS):
            self._made = tempfile.mkdtemp(prefix="rmq-metrics-")
            os.environ[MULTIPROCESS] = self._made  # for this process and its child processes

    def forget(self, pid: int) -> None:
        """Remove the gauges of a process that has ended. Its counters stay."""
        if has_prometheus():
            _prometheus("prometheus_client.multiprocess").mark_process_dead(pid)

    def close(self) -> None:
        """Remove the directory if this object has created it."""
        if self._made:
            os.environ.pop(MULTIPROCESS, None)
            shutil.rmtree(self._made, ignore_errors=True)


def has_prometheus() -> bool:
    """Return whether prometheus_client is installed."""
    return importlib.util.find_spec("prometheus_client") is not None


def _prometheus(module: str) -> Any:
    return packages.load(module, "prometheus", "/metrics")
