"""Canonical states: one for all that differ only in names.

Names are the numbers of deliveries, calls and shared leases.

Deliveries and leases are compared for equality, and a new one differs from all; so they may be
counted anew. The last number of a session matters only while somebody may still send a call of it.
"""

from __future__ import annotations

from tests.model.protocol import (
    CANCELLER,
    OWNER,
    PLAIN,
    SECOND,
    SLEEPER,
    WORKER,
    Call,
    Receipt,
    Server,
    put,
)
from tests.model.world import State

NOTHING = (0, ())  # what a server has of a session that it does not know
COUNTED = tuple(tuple(range(length + 1)) for length in range(50))  # names as they should be


def canonical(state: State) -> State:
    clients, copy = state.clients, state.copy
    servers = (state.server, *state.older)
    for who in (PLAIN, WORKER, SLEEPER, CANCELLER):
        client = clients[who]
        late = copy is not None and OWNER[copy.who] == who
        waits = client.call is not None or client.awaits or late
        credit = who == SLEEPER and any(server.credit is not None for server in servers)
        if client.second and client.alive and not waits and not credit:
            clients = put(clients, who, client._replace(second=0))
            client = clients[who]
            servers = tuple(_forget(s, SECOND) for s in servers)
        if client.number and client.alive and not waits and not credit:
            clients = put(clients, who, client._replace(number=0))
            servers = tuple(s if s.sessions[who] == NOTHING else _forget(s, who) for s in servers)
    names = {0: 0}
    leases = {0: 0}
    for server in servers:
        for receipt in server.prepare:
            if receipt is not None:
                names.setdefault(receipt.delivery, len(names))
                if receipt.lease > 0:
                    leases.setdefault(receipt.lease, len(leases))
        for delivery in server.requests:
            names.setdefault(delivery, len(names))
        if server.lease is not None:
            leases.setdefault(server.lease[0], len(leases))
        for _, answer in server.sessions:
            if type(answer) is tuple:
                for _, delivery in answer:
                    names.setdefault(delivery, len(names))
    for client in clients:
        for held in client.held:
            names.setdefault(held.delivery, len(names))
        if client.call is not None:
            names.setdefault(client.call.delivery, len(names))
    if copy is not None:
        names.setdefault(copy.delivery, len(names))
    known = len(names) - 1
    worker = clients[WORKER]
    named = tuple(names) == COUNTED[known] and tuple(leases) == COUNTED[len(leases) - 1]
    for call in (worker.call, copy):
        named = named and (call is None or call.lease <= 0 or call.lease in leases)
    if named and worker.lease in leases:  # as in most states: nothing else has to be built
        servers = tuple(s if s.delivered == known else s._replace(delivered=known) for s in servers)
        if servers == (state.server, *state.older) and clients is state.clients:
            return state
        return state._replace(server=servers[0], older=servers[1:], clients=clients)
    if copy is not None:
        copy = _called(copy, names, leases)
    servers = tuple(_server(server, names, leases) for server in servers)
    renamed = []
    for client in clients:
        if client.held or client.call is not None or client.lease:
            client = client._replace(
                held=tuple(h._replace(delivery=names[h.delivery]) for h in client.held),
                call=client.call and _called(client.call, names, leases),
                lease=leases.get(client.lease, 0),
            )
        renamed.append(client)
    return state._replace(server=servers[0], older=servers[1:], clients=tuple(renamed), copy=copy)


def _forget(server: Server, who: int) -> Server:
    return server._replace(sessions=put(server.sessions, who, NOTHING))


def _called(call: Call, names: dict[int, int], leases: dict[int, int]) -> Call:
    lease = leases.get(call.lease, 0) if call.lease > 0 else call.lease
    return call._replace(delivery=names[call.delivery], lease=lease)


def _server(server: Server, names: dict[int, int], leases: dict[int, int]) -> Server:
    return server._replace(
        prepare=tuple(
            receipt
            and Receipt(
                names[receipt.delivery], receipt.left, leases.get(receipt.lease, receipt.lease)
            )
            for receipt in server.prepare
        ),
        delivered=len(names) - 1,
        sessions=tuple(
            (last, tuple((m, names[d]) for m, d in answer))
            if type(answer) is tuple and answer
            else (last, answer)
            for last, answer in server.sessions
        ),
        requests=tuple(names[delivery] for delivery in server.requests),
        lease=server.lease and (leases[server.lease[0]], server.lease[1]),
    )
