"""Load the library of functions, list those that RMQ has loaded, delete one.

Plain commands: each is safe to run twice. On a cluster each master has libraries of its own.
"""

from __future__ import annotations

from typing import Any

from rmq.errors import InvalidValue, ScriptFailed
from rmq.kernel.core.function_library import FunctionLibrary
from rmq.kernel.transport.functions import NAME, PATTERN, library_name, library_text
from rmq.kernel.transport.steps import Flow, OnEveryMaster

LOAD, LIST, DELETE = "functions load", "functions", "functions delete"  # what errors call the flows


def load(version: str) -> Flow[bool]:
    """Load the library of this RMQ where it is missing; return whether it was, anywhere.

    Args:
        version: of this RMQ, for people who look at the library.
    """
    listed = yield OnEveryMaster(LOAD, "FUNCTION", "LIST", "LIBRARYNAME", library_name())
    if all(listed):
        return False
    # REPLACE: another client may load it just now, and the name says that the content is the same.
    yield OnEveryMaster(LOAD, "FUNCTION", "LOAD", "REPLACE", library_text(version))
    return True


def libraries() -> Flow[list[FunctionLibrary]]:
    """List the libraries that RMQ has loaded, by name."""
    found: dict[str, list[dict[str, Any]]] = {}
    for listed in (yield OnEveryMaster(LIST, "FUNCTION", "LIST", "LIBRARYNAME", PATTERN)):
        for reply in listed:
            library = _fields(reply)
            name = library["library_name"].decode()
            if NAME.fullmatch(name):
                found.setdefault(name, []).append(library)
    return [_described(name, found[name]) for name in sorted(found)]


def delete(name: str) -> Flow[bool]:
    """Delete a library that RMQ has loaded; return whether there was one.

    Raises:
        InvalidValue: the name cannot be one of RMQ's.
    """
    if not NAME.fullmatch(name):
        raise InvalidValue(f"library: {ascii(name)[:60]}; give a name that rmq functions ls shows")
    look = OnEveryMaster(DELETE, "FUNCTION", "LIST", "LIBRARYNAME", name)
    if not any((yield look)):
        return False
    try:
        yield OnEveryMaster(DELETE, "FUNCTION", "DELETE", name)
    except ScriptFailed:  # a master that does not have it refuses, also where that came twice
        if any((yield look)):
            raise
    return True


def _fields(reply: Any) -> dict[str, Any]:
    """Return a reply of names and values, which RESP3 sends as a map."""
    pairs = reply.items() if isinstance(reply, dict) else zip(*[iter(reply)] * 2, strict=True)
    return {name.decode(): value for name, value in pairs}


def _described(name: str, found: list[dict[str, Any]]) -> FunctionLibrary:
    described = [_fields(function)["description"] for function in found[0]["functions"]]
    told = (described[0] if described else None) or b""
    return FunctionLibrary(
        name,
        version=told.decode(errors="replace").removeprefix("RMQ "),
        is_current=name == library_name(),
        functions=len(described),
        masters=len(found),
    )
