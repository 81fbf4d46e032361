"""The scenarios by name, and what several of them begin with."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import rmq
from tests.golden.wire import Scenario, Scene
from tests.golden.wire_text import NOW_US

NOW = datetime.fromtimestamp(NOW_US / 1_000_000, UTC)
SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    """Register a scenario; its docstring stands above its recording."""
    SCENARIOS[function.__name__] = function
    return function


def fill(scene: Scene, count: int = 5, **settings: Any) -> Any:
    """Return a topic with messages, which go to two slots in turn if it has two."""
    topic = scene.topic(**settings)
    topic.send_many([rmq.Outgoing(n, slot_basis=f"basis {4 * n}") for n in range(count)])
    scene.forget()
    return topic


def bury(scene: Scene, count: int = 4) -> list[Any]:
    """Return the ids of dead letters."""
    topic = fill(scene, count, slots=2)
    with topic.consumer() as consumer:
        deliveries = consumer.receive(100)
        consumer.reject(deliveries[1:], "no such customer")
        consumer.reject(deliveries[:1], ValueError("unreadable"))
    scene.forget()
    return [delivery.id for delivery in deliveries]
