"""The server: one process that does what no consumer should have to, and answers over HTTP.

Consumers give back expired leases and drop old dead letters of the topics that they use. The server
does it for all topics, whoever uses them. Several servers may run: one of them leads, and every
service is safe if two of them work at once.

server          Server: its parts, from start to stop
config          its settings, from flags, the environment and a file, and where each came from
leadership      which server leads
listener        the thread that serves HTTP; protocol: its limits of time, size and number
application     the ASGI applications: the server's, and ConsoleApp for others to mount
guard           checks of each request: host, principal, rate, site; rates: how many are allowed
authentication  who asks: tokens, a proxy, a host; sessions: browsers that have signed in
disclosure      what of an answer a principal is shown
api             the verbs of Admin over HTTP, and their lines in the audit trail
console         the pages as routes; pages: their table, health, signing in; leases: one of them
metrics         the server's metrics for Prometheus

Its services are in the `service.py` of each feature; `rmq.web.service` says what a service is, and
`rmq.web.survey` reads the counts of all slots once for all of them.
"""

from rmq.kernel.core.access import Role
from rmq.server.application import ConsoleApp
from rmq.server.config import ServerConfig
from rmq.server.server import Server
from rmq.web.principal import Principal

__all__ = ["ConsoleApp", "Principal", "Role", "Server", "ServerConfig"]
