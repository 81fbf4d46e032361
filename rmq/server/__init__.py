"""The server: one process that maintains all topics and serves the HTTP API and the console.

Consumers roll back expired leases and drop old dead letters, but only in the topics that they use.
The server does this for all topics. You can run several servers. One of them is the leader. Two
servers can safely run the same service at the same time.

server          Server: the parts of the process, from start to stop
config          settings, from flags, the environment and a file
leadership      chooses the server that is the leader
listener        thread that serves HTTP
protocol        limits of time, size and number for connections
application     ASGI applications: the server's, and ConsoleApp for other applications to mount
guard           checks the host, the user, the rate and the origin of each request
rates           token buckets
authentication  finds the user or program that sent a request
sessions        signed-in browsers
disclosure      removes from answers everything that a user or program may not see
api             operations of Admin over HTTP, and their records in the audit trail
console         routes of the pages
pages           table of pages, health, signing in
leases          page of messages in flight
metrics         the server's metrics for Prometheus

The services are in the `service.py` of each feature. `rmq.http_framework.service` defines the
interface of a service. `rmq.http_framework.survey` reads the counts of all topics once for all
services.
"""

from rmq.http_framework.principal import Principal
from rmq.kernel.core.access import Role
from rmq.server.application import ConsoleApp
from rmq.server.config import ServerConfig
from rmq.server.server import Server

__all__ = ["ConsoleApp", "Principal", "Role", "Server", "ServerConfig"]
