"""MODULE[:ATTR]: import a module of the user's, and find the client or the worker in it."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import click

import rmq
from rmq.cli.app import ERROR, USAGE, Failed
from rmq.cli.output import neutral

Target = rmq.Client | rmq.AsyncClient | rmq.Worker
KINDS = (rmq.Client, rmq.AsyncClient, rmq.Worker)
WANTED = "an rmq.Client, rmq.AsyncClient or rmq.Worker"
MOST_NAMES = 8


def find(text: str) -> Target:
    """What MODULE[:ATTR] names.

    Raises:
        Failed: there is no such thing; the message tells what is there. Where the module itself
            fails, its traceback is on stderr.
    """
    name, colon, path = text.partition(":")
    if not all(part.isidentifier() for part in name.split(".")) or name.endswith(".py"):
        raise _wrong(f"{text!r} is no module; {_meant(name)}")
    module = _import(name)
    if not colon:
        return _only(module)
    found: Any = module
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise _wrong(
                f"{_place(module)} has no {path!r}{_close(part, vars(module))}; {_there(module)}"
            ) from None
    if not isinstance(found, KINDS):
        raise _wrong(f"{name}:{path} is a {type(found).__name__}, not {WANTED}; {_there(module)}")
    return found


def declared(text: str) -> dict[str, dict[str, Any]]:
    """The settings that MODULE[:ATTR] declares, by topic.

    Raises:
        Failed: as `find`.
    """
    found = find(text)
    client = found._client if isinstance(found, rmq.Worker) else found
    return dict(client._declared)


def _wrong(message: str) -> Failed:
    return Failed(message, USAGE, "NoSuchTarget")


def _meant(name: str) -> str:
    """What may have been meant by a name that no module can have."""
    stem = name.removesuffix(".py").replace(os.sep, ".").strip(".")
    if stem and all(part.isidentifier() for part in stem.split(".")):
        return f"write it as import does: rmq worker {stem}"
    return "write it as import does: shop, or shop.handlers:client"


# --- the module ----------------------------------------------------------------------------------


def _import(name: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        theirs = _after_ours(error.__traceback__)
        if isinstance(error, ModuleNotFoundError) and theirs is None:
            raise _unknown(name, str(error.name)) from None
        told = "".join(traceback.format_exception(type(error), error, theirs))
        click.echo(neutral(told, lines=True), err=True, nl=False)
        message = f"module {name!r} cannot be imported: {type(error).__name__}: {error}"
        if isinstance(error, SystemExit):
            message += '; what is to run a program belongs under if __name__ == "__main__"'
        raise Failed(message, ERROR, "ImportFailed") from None


def _after_ours(at: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that is the user's: after this file, and what imports."""
    while at is not None:
        name = at.tb_frame.f_code.co_filename
        if name not in (__file__, importlib.__file__) and not name.startswith("<frozen importlib"):
            break
        at = at.tb_next
    return at


def _unknown(name: str, missing: str) -> Failed:
    package, _, last = missing.rpartition(".")
    where = f"package {package!r}" if package else f"{os.getcwd()} or on Python's path"
    folders = [os.getcwd()]
    if package:
        folders = list(getattr(sys.modules.get(package), "__path__", []))
        if not folders:
            return _wrong(f"{package!r} is a module, no package; there can be no {name!r}")
    there = sorted({found for folder in folders for found in _modules(folder)})
    listed = f"; there: {_list(there)}" if there else ""
    return _wrong(f"no module {last!r} in {where}{_close(last, there)}{listed}")


def _modules(folder: str) -> Iterable[str]:
    """The modules and packages of a directory."""
    with os.scandir(folder) as entries:
        for entry in entries:
            stem = entry.name.removesuffix(".py") if entry.is_file() else entry.name
            if not stem.isidentifier() or stem.startswith("__"):
                continue
            if stem != entry.name or (entry.is_dir() and any(Path(entry.path).glob("*.py"))):
                yield stem


# --- what is in it -------------------------------------------------------------------------------


def _place(module: ModuleType) -> str:
    file = getattr(module, "__file__", None)
    return f"module {module.__name__!r}" + (f" ({os.path.relpath(file)})" if file else "")


def _targets(module: ModuleType) -> dict[str, Target]:
    """What a worker can be made of, by its first name in the module."""
    found: dict[int, tuple[str, Target]] = {}
    for name, value in vars(module).items():
        if isinstance(value, KINDS):
            found.setdefault(id(value), (name, value))
    return dict(found.values())


def _only(module: ModuleType) -> Target:
    """The one thing that can be meant, where no name is given."""
    found = _targets(module)
    if not found:
        raise _wrong(f"{_place(module)} has no {WANTED.partition(' ')[2]} at its top level")
    served = [one._client for one in found.values() if isinstance(one, rmq.Worker)]
    likely = {
        name: one
        for name, one in found.items()
        if isinstance(one, rmq.Worker) or (one._handlers.by_topic and one not in served)
    }
    chosen = likely or found
    if len(chosen) > 1:
        first = next(iter(chosen))
        raise _wrong(
            f"{_place(module)} has several: {_list(_told(chosen))}; say which, as "
            f"{module.__name__}:{first}"
        )
    return next(iter(chosen.values()))


def _told(targets: dict[str, Target]) -> list[str]:
    return [f"{name} ({type(one).__name__})" for name, one in targets.items()]


def _there(module: ModuleType) -> str:
    found = _targets(module)
    return f"there: {_list(_told(found))}" if found else f"there is none of {WANTED} in it"


def _close(name: str, names: Iterable[str]) -> str:
    found = difflib.get_close_matches(name, list(names), 1)
    return f", did you mean {found[0]!r}?" if found else ""


def _list(names: list[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
