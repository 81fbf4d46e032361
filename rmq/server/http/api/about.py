"""The server itself, its services, and worker processes."""

from __future__ import annotations

from rmq.core.version import VERSION
from rmq.server.http.api import views
from rmq.server.http.api.operation import At, Table

TABLE = Table("server")


@TABLE.get("/info")
async def get_info(at: At) -> views.About:
    """Return what answers."""
    facts = await at.client.server_info()
    version = facts.get("valkey_version") or facts.get("redis_version", "")
    return views.About(version=VERSION, server=at.server, leads=at.leads(), redis_version=version)


@TABLE.get("/services")
async def list_services(at: At) -> views.ServiceList:
    """List the services of the server that answers."""
    return views.ServiceList(services=list(at.services()))


@TABLE.get("/workers")
async def list_workers(at: At) -> views.WorkerList:
    """List worker processes, by host and pid, as they last reported."""
    return views.WorkerList(workers=await at.admin.workers())
