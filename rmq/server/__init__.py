"""The server: one process that does what no consumer should have to, and answers over HTTP.

Consumers give back expired leases and drop old dead letters of the topics that they use. The server
does it for all topics, whoever uses them. Several servers may run: one of them leads, and every
service is safe if two of them work at once.

server       Server: its parts, from start to stop
config       its settings, from flags, the environment and a file, and where each came from
leadership   which server leads
service      what a service is, and the thread that runs one
survey       the counts of all slots, read once for all services
services/    one file each: rollback, retention, schedules, jobs
console_app  ConsoleApp: the console and the API, for other applications to mount
http/        the ASGI application: probes, metrics, access control; http/api: the verbs of Admin
"""

from rmq.kernel.core.access import Role
from rmq.server.application import ConsoleApp
from rmq.server.config import ServerConfig
from rmq.server.server import Server
from rmq.web.principal import Principal

__all__ = ["ConsoleApp", "Principal", "Role", "Server", "ServerConfig"]
