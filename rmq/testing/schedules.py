"""Schedules in a test: those that adopted clients declare are written, and sent by the clock."""

from __future__ import annotations

from rmq.client.client import AsyncClient
from rmq.client.client_blocking import Client
from rmq.features.schedules.dispatch import Dispatch
from rmq.kernel.transport.blocking import Transport
from rmq.testing.adoption import Adoptions


class ScheduledSends:
    """The scheduler of a broker. It works when it is asked: before and after the clock moves."""

    def __init__(self, transport: Transport, adoptions: Adoptions) -> None:
        self._transport = transport
        self._adoptions = adoptions
        self._dispatches: dict[Client | AsyncClient, Dispatch] = {}

    def send_due(self) -> float | None:
        """Declare what was declared since, send what is due; return the seconds until the next."""
        waits: list[float] = []
        for client in list(self._adoptions):
            if not client._handlers.schedules:
                continue
            dispatch = self._dispatches.get(client)
            if dispatch is None:
                dispatch = Dispatch(client._prefix, self._transport, client._handlers)
                self._dispatches[client] = dispatch
            dispatch.declare()
            sent, waits_by_topic = dispatch.send_due()
            while sent:
                sent, waits_by_topic = dispatch.send_due()
            waits += waits_by_topic.values()
        return min(waits, default=None)
