"""A reverse proxy that serves one server below a path, as nginx and Caddy do."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from tests.server.hosting import answering
from tests.server.running import PATIENCE_S


@contextmanager
def proxied(url: str, root: str, strips: bool) -> Iterator[str]:
    """A proxy; yields its address.

    Args:
        url: of the server behind it.
        root: the path that it serves; it answers 404 to all others.
        strips: whether the server is asked without the root.
    """
    behind = urlsplit(url).netloc

    class Handler(BaseHTTPRequestHandler):
        def _pass_on(self) -> None:
            if not self.path.startswith(root + "/"):
                self.send_error(404)
                return
            path = self.path.removeprefix(root) if strips else self.path
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            connection = http.client.HTTPConnection(behind, timeout=PATIENCE_S)
            headers = {name: value for name, value in self.headers.items() if name != "Connection"}
            headers |= {"X-Forwarded-For": "192.0.2.7", "X-Forwarded-Proto": "https"}
            connection.request(self.command, path, body or None, headers)
            answer = connection.getresponse()
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "connection"):
                    self.send_header(name, value)
            self.end_headers()
            try:
                while part := answer.read1(65536):
                    self.wfile.write(part)
                    self.wfile.flush()
            except (OSError, http.client.HTTPException):
                pass  # the browser or the server has gone
            connection.close()

        do_GET = do_POST = _pass_on

        def log_message(self, format: str, *args: object) -> None:
            pass

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    proxy.daemon_threads = True
    with answering(proxy) as address:
        yield address
