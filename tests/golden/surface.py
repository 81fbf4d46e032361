"""All that a user can name, as text: names of Python, operations of HTTP, help of commands.

python -m tests.golden.surface      write the files anew; git shows what has changed
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner

import rmq
from rmq.cli import cli
from rmq.http_framework import openapi
from rmq.server.api import BASE, TABLES

FOLDER = Path(__file__).parent
MODULES = (
    "rmq", "rmq.errors", "rmq.ledger", "rmq.outbox", "rmq.connectors", "rmq.interceptors",
    "rmq.testing", "rmq.server",
)  # fmt: skip
WIDTH = 100
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_FORWARD = re.compile(r"ForwardRef\('([^']*)'\)")


def python() -> Iterator[str]:
    """The public names of the public modules, with signatures and fields."""
    for name in MODULES:
        module = importlib.import_module(name)
        for public in sorted(getattr(module, "__all__", vars(module))):
            if not public.startswith("_"):
                yield from _named(f"{name}.{public}", getattr(module, public))


def _named(name: str, value: Any) -> Iterator[str]:
    if not getattr(value, "__module__", "").startswith("rmq"):
        if not inspect.ismodule(value):
            yield f"{name} = {_ADDRESS.sub('', repr(value))[:WIDTH]}"
        return
    yield f"{name}{_signature(value)}"
    if not inspect.isclass(value):
        return
    fields = getattr(value, "_fields", None) or getattr(value, "__struct_fields__", ())
    if dataclasses.is_dataclass(value):
        fields = [field.name for field in dataclasses.fields(value)]
    for field in fields:
        yield f"    .{field}"
    for member in sorted({each for cls in value.__mro__ for each in _public(cls)} - {*fields}):
        found = inspect.getattr_static(value, member)
        kind = {staticmethod: " (static)", classmethod: " (class)", property: " (property)"}
        yield f"    .{member}{kind.get(type(found), '')}{_signature(getattr(value, member))}"


def _public(cls: type) -> list[str]:
    ours = cls.__module__.startswith("rmq")
    return [name for name in vars(cls) if ours and not name.startswith("_")]


def _signature(value: Any) -> str:
    if not callable(value) or value is typing.Any:
        return ""
    try:
        return _FORWARD.sub(r"\1", _ADDRESS.sub("", str(inspect.signature(value))))
    except (TypeError, ValueError):
        return "(...)"


def http() -> Iterator[str]:
    """The operations of the HTTP API, and the fields of what they read and answer."""
    document = openapi.document([each for table in TABLES for each in table.operations], BASE)
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}  {operation['operationId']}"
            for given in operation.get("parameters", ()):
                yield f"    {given['in']} {given['name']}: {_schema(given['schema'])}"
            for media in operation.get("requestBody", {}).get("content", {}).values():
                yield f"    body: {_schema(media['schema'])}"
            for status, answer in operation["responses"].items():
                shown = [_schema(media["schema"]) for media in answer.get("content", {}).values()]
                yield f"    {status}: {' | '.join(shown)}"
    for name, schema in sorted(document["components"]["schemas"].items()):
        yield name
        required = set(schema.get("required", ()))
        for field, kind in schema.get("properties", {}).items():
            yield f"    {field}{'' if field in required else '?'}: {_schema(kind)}"


def _schema(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " | ".join(map(_schema, schema["anyOf"]))
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    kind = str(schema.get("type", "any"))
    if kind == "array":
        kind = f"[{_schema(schema.get('items') or {})}]"
    bounds = {
        each: schema[each]
        for each in ("minimum", "maximum", "minLength", "maxLength", "pattern", "default", "format")
        if each in schema
    }
    return f"{kind} {bounds}" if bounds else kind


def commands() -> Iterator[str]:
    """The help of all commands."""
    waiting: list[tuple[str, ...]] = [()]
    while waiting:
        words = waiting.pop(0)
        done = CliRunner().invoke(cli, [*words, "--help"], terminal_width=WIDTH, prog_name="rmq")
        yield f"$ rmq {' '.join((*words, '--help'))}"
        yield from (line.rstrip() for line in done.output.splitlines())
        command: click.Command = cli
        context = click.Context(cli)
        for word in words:
            assert isinstance(command, click.Group)
            found = command.get_command(context, word)
            assert found is not None
            command = found
        if isinstance(command, click.Group):
            waiting += [(*words, each) for each in command.list_commands(context)]


FILES = {"python.txt": python, "http.txt": http, "commands.txt": commands}


def text_of(name: str) -> str:
    """Return the text that a file should have."""
    return "".join(f"{line}\n" for line in FILES[name]())


if __name__ == "__main__":
    assert rmq.__version__
    for file in FILES:
        (FOLDER / file).write_text(text_of(file))
