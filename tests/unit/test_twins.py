"""What is said twice is said alike: the two executors, and what a message may be sent with."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest

import rmq
from rmq.cli.send import send

WIRE = Path(__file__).parents[2] / "rmq" / "transport"
NAMES = {
    "AsyncTransport": "Transport", "aredis": "redis", "AsyncRetry": "Retry", "AsyncPool": "Pool",
    "aclose": "close", "Awaitable[T]": "T", "asyncio.sleep": "time.sleep",
    "asyncio.to_thread(": "(",
}  # fmt: skip
# Where redis-py's two connections differ in more than a word.
OWN_WAYS = {
    "_awaited", "_beside", "_exchange", "_later", "_leave", "_listen", "_load", "_pool_here",
    "_revive", "_subscribed", "close", "unsubscribe",
}  # fmt: skip
THREADS = {"interrupt"}  # one thread wakes another; a task is cancelled instead


def methods(path: Path) -> dict[str, str]:
    text = path.read_text()
    for theirs, ours in NAMES.items():
        text = text.replace(theirs, ours)
    text = re.sub(r"\b(await|async) ", "", text)
    (cls,) = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    return {node.name: ast.unparse(node) for node in cls.body if isinstance(node, ast.FunctionDef)}


def test_the_twins_have_the_same_methods() -> None:
    assert methods(WIRE / "asyncio.py").keys() == methods(WIRE / "sync.py").keys() - THREADS


@pytest.mark.parametrize("name", sorted(methods(WIRE / "sync.py").keys() - OWN_WAYS - THREADS))
def test_a_method_differs_from_its_twin_in_await_alone(name: str) -> None:
    ours, theirs = (methods(WIRE / f"{twin}.py")[name] for twin in ("sync", "asyncio"))
    assert theirs == ours


def test_a_send_takes_what_an_outgoing_has_in_its_order() -> None:
    own = [one.name for one in fields(rmq.Outgoing) if one.name != "marks"]

    for topic in (rmq.Topic, rmq.AsyncTopic):
        taken = list(inspect.signature(topic.send).parameters)
        assert taken == ["self", *own, "durability", "timeout"]
    options = {one.name for one in send.params}
    assert options >= set(own) - {"retry", "max_runtime"}, "those two need a handler, and code"
