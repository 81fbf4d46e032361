"""Transports and pools are twins: what they have by hand differs in `await` alone, mostly."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import rmq.kernel.transport

pytestmark = pytest.mark.usefixtures("no_finalizers")

PACKAGE = Path(rmq.kernel.transport.__file__).parent
ASYNC_NAMES = {
    "AsyncTransport": "Transport", "aredis": "redis", "AsyncPool": "Pool",
    "AsyncSentinelPool": "SentinelPool", "drive_async": "drive", "asyncio.sleep": "time.sleep",
    "(nowait=True)": "()",
}  # fmt: skip
# Methods that need more than `await`: a loop instead of threads, another method of redis-py.
DIFFERENT = {
    "__init__", "close", "_run_cleanup", "_start_in_background", "_run_in_background", "_own_step",
    "_perform", "exchange", "send", "is_reentrant",
    "acquire", "discard", "_answers", "_serve", "_wait", "_await_event",
}  # fmt: skip
# A task is cancelled instead; a worker has a blocking transport, also for an async client.
ONLY_FOR_THREADS = {
    "url", "_temporary", "_close_temporary", "add_channel",
    "is_current",
}  # fmt: skip
# Tasks share connections. Whether a pool belongs to this process is an attribute for threads.
ONLY_FOR_TASKS = {"_exchange_all", "is_own"}


def methods(file: str, class_name: str) -> dict[str, str]:
    """The code of each method as it would be without asyncio, docstrings left out."""
    text = (PACKAGE / file).read_text()
    (cls,) = [
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef) and node.name == class_name
    ]
    found = {}
    for node in cls.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if ast.get_docstring(node) is not None:
                node.body = node.body[1:]
            code = re.sub(r"\b(await|async) ", "", ast.unparse(node))
            for theirs, ours in ASYNC_NAMES.items():
                code = code.replace(theirs, ours)
            found[node.name] = ast.unparse(ast.parse(code))
    return found


TWINS = [
    (methods("single/blocking.py", "Transport"), methods("single/asyncio.py", "AsyncTransport")),
    (methods("connections/pool.py", "Pool"), methods("connections/pool.py", "AsyncPool")),
]
IDS = ["transport", "pool"]


@pytest.mark.parametrize(("ours", "theirs"), TWINS, ids=IDS)
def test_twins_have_the_same_methods(ours: dict[str, str], theirs: dict[str, str]) -> None:
    assert theirs.keys() - ONLY_FOR_TASKS == ours.keys() - ONLY_FOR_THREADS


@pytest.mark.parametrize(("ours", "theirs"), TWINS, ids=IDS)
def test_other_methods_differ_from_their_twins_in_await_alone(
    ours: dict[str, str], theirs: dict[str, str]
) -> None:
    for name in theirs.keys() - DIFFERENT - ONLY_FOR_TASKS:
        assert theirs[name] == ours[name]
