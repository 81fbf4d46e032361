"""Run a worker until something is so, for either client and either kind of handler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import rmq
from tests.patience import wait_for


def handle(
    topic: Any,
    style: str,
    function: Callable[[Any, Any], Any],
    guard: Callable[[Any], Any] = lambda function: function,
    **options: Any,
) -> None:
    """Register a function of (body, delivery), or of a batch, as a plain or an async handler."""
    if "batch" in options:

        def batch(deliveries: Any) -> None:
            function([one.body for one in deliveries], deliveries)

        async def batch_async(deliveries: Any) -> None:
            function([one.body for one in deliveries], deliveries)

        topic.handler(**options)(batch_async if style == "async" else batch)
        return

    def plain(body: Any, d: Any) -> None:
        function(body, d)

    async def awaited(body: Any, d: Any) -> None:
        function(body, d)

    topic.handler(**options)(guard(awaited if style == "async" else plain))


def work(client: Any, true: Callable[[], Any], **options: Any) -> None:
    """Run a worker of this client until it is so, and stop it."""
    with rmq.Worker(getattr(client, "target", client), heartbeat="thread", **options):
        wait_for(true)
