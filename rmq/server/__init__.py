"""The server: one process that maintains all topics and serves the HTTP API and the console.

Consumers roll back expired leases and drop old dead letters, but only in the topics that they use.
The server does this for all topics. Several servers may run, and one of them is the leader. Every
service is safe even if two servers run it at the same time.

server          Server: the parts of the process, from start to stop
config          settings, from flags, the environment and a file; the origin of each setting
leadership      election of the server that leads
listener        thread that serves HTTP
protocol        limits of time, size and number for connections
application     ASGI applications: the server's, and ConsoleApp for other applications to mount
guard           checks of each request: host, principal, rate, site of origin
rates           token buckets
authentication  finds the principal (user or program) of a request
sessions        signed-in browsers
disclosure      removes from answers what a principal may not see
api             operations of Admin over HTTP, and their lines in the audit trail
console         routes of the pages
pages           table of pages, health, signing in
leases          page of messages in flight
metrics         the server's metrics for Prometheus

The services are in the `service.py` of each feature. `rmq.http_framework.service` defines the
interface of a service. `rmq.http_framework.survey` reads the counts of all slots once for all
services.
"""

from rmq.http_framework.principal import Principal
from rmq.kernel.core.access import Role
from rmq.server.application import ConsoleApp
from rmq.server.config import ServerConfig
from rmq.server.server import Server

__all__ = ["ConsoleApp", "Principal", "Role", "Server", "ServerConfig"]
