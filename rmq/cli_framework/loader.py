"""Import the user's MODULE[:ATTR], and find the client or the worker in the module."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from types import ModuleType, TracebackType
from typing import Any

import click

import rmq
from rmq.cli_framework.app import ERROR, USAGE, Failed
from rmq.cli_framework.text import neutral
from rmq.kernel.core.validation import nearest

Target = rmq.Client | rmq.AsyncClient | rmq.Worker
TARGET_TYPES = (rmq.Client, rmq.AsyncClient, rmq.Worker)
EXPECTED = "an rmq.Client, rmq.AsyncClient or rmq.Worker"
MAX_NAMES = 8


def find(text: str) -> Target:
    """Return the client or worker that MODULE[:ATTR] names.

    Raises:
        Failed: The name matches no client or worker. The message lists the existing clients and
            workers. If the module itself fails, the function prints the traceback on stderr.
    """
    name, colon, path = text.partition(":")
    if not all(part.isidentifier() for part in name.split(".")) or name.endswith(".py"):
        raise _no_such_target(f"{text!r} is not a module; {_suggest_module(name)}")
    module = _import_module(name)
    if not colon:
        return _single_target(module)
    target: Any = module
    for part in path.split("."):
        try:
            target = getattr(target, part)
        except AttributeError:
            raise _no_such_target(
                f"{_describe_module(module)} has no {path!r}{nearest(part, vars(module))}; "
                f"{_list_targets(module)}"
            ) from None
    if not isinstance(target, TARGET_TYPES):
        raise _no_such_target(
            f"{name}:{path} is a {type(target).__name__}, not {EXPECTED}; {_list_targets(module)}"
        )
    return target


def declared(text: str) -> dict[str, dict[str, Any]]:
    """Return the settings of each topic that MODULE[:ATTR] declares.

    Raises:
        Failed: As in `find`.
    """
    target = find(text)
    client = target._client if isinstance(target, rmq.Worker) else target
    return dict(client._declared)


def _no_such_target(message: str) -> Failed:
    return Failed(message, USAGE, "NoSuchTarget")


def _suggest_module(name: str) -> str:
    stem = name.removesuffix(".py").replace(os.sep, ".").strip(".")
    if stem and all(part.isidentifier() for part in stem.split(".")):
        return f"write it as import does: rmq worker {stem}"
    return "write it as import does: shop, or shop.handlers:client"


# --- the module ----------------------------------------------------------------------------------


def _import_module(name: str) -> ModuleType:
    cwd = os.getcwd()
    if cwd not in sys.path:
        sys.path.insert(0, cwd)
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        user_traceback = _user_part(error.__traceback__)
        if isinstance(error, ModuleNotFoundError) and user_traceback is None:
            message = f"{error}, in {os.getcwd()} or on Python's path"
            raise Failed(message, ERROR, "ImportFailed") from None
        traceback_text = "".join(traceback.format_exception(type(error), error, user_traceback))
        click.echo(neutral(traceback_text, lines=True), err=True, nl=False)
        message = f"module {name!r} cannot be imported: {type(error).__name__}: {error}"
        if isinstance(error, SystemExit):
            message += '; put code that runs a program under if __name__ == "__main__"'
        raise Failed(message, ERROR, "ImportFailed") from None


def _user_part(at: TracebackType | None) -> TracebackType | None:
    while at is not None:
        name = at.tb_frame.f_code.co_filename
        if name not in (__file__, importlib.__file__) and not name.startswith("<frozen importlib"):
            break
        at = at.tb_next
    return at


# --- the clients and workers in it ---------------------------------------------------------------


def _describe_module(module: ModuleType) -> str:
    file = getattr(module, "__file__", None)
    return f"module {module.__name__!r}" + (f" ({os.path.relpath(file)})" if file else "")


def _targets(module: ModuleType) -> dict[str, Target]:
    """Return the clients and workers of a module, with their names in the module."""
    first_names: dict[int, tuple[str, Target]] = {}
    for name, value in vars(module).items():
        if isinstance(value, TARGET_TYPES):
            first_names.setdefault(id(value), (name, value))
    return dict(first_names.values())


def _single_target(module: ModuleType) -> Target:
    """Return the client or worker of a module. The user has not named an attribute."""
    targets = _targets(module)
    if not targets:
        raise _no_such_target(
            f"{_describe_module(module)} has no {EXPECTED.partition(' ')[2]} at its top level"
        )
    served_clients = [
        target._client for target in targets.values() if isinstance(target, rmq.Worker)
    ]
    likely = {
        name: target
        for name, target in targets.items()
        if isinstance(target, rmq.Worker)
        or (target._handlers.by_topic and target not in served_clients)
    }
    chosen = likely or targets
    if len(chosen) > 1:
        first = next(iter(chosen))
        raise _no_such_target(
            f"{_describe_module(module)} has several: {_join_names(_with_types(chosen))}; "
            f"say which, as {module.__name__}:{first}"
        )
    return next(iter(chosen.values()))


def _with_types(targets: dict[str, Target]) -> list[str]:
    return [f"{name} ({type(target).__name__})" for name, target in targets.items()]


def _list_targets(module: ModuleType) -> str:
    targets = _targets(module)
    return (
        f"there: {_join_names(_with_types(targets))}"
        if targets
        else f"there is none of {EXPECTED} in it"
    )


def _join_names(names: list[str]) -> str:
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
