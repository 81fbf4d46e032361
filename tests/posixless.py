"""Takes from Python what it has on POSIX systems only: a program that runs here runs on Windows.

`python -m tests.posixless PROGRAM.py ARGUMENT...` runs a program so, and `pytest -p
tests.posixless` runs tests. What the standard library needs of it is imported before.
"""

from __future__ import annotations

import asyncio
import builtins
import multiprocessing.util  # noqa: F401 - it is imported while it can be
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile  # noqa: F401
from collections.abc import Sequence
from types import FrameType, ModuleType
from typing import Any

import psutil  # noqa: F401
import pytest

# Names as in the documentation of Python: "Availability: Unix".
NAMES: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (os, (
        "register_at_fork", "fork", "forkpty", "getuid", "geteuid", "getgid", "getegid", "getpgid",
        "getsid", "setsid", "killpg", "pidfd_open", "memfd_create", "sysconf", "sched_getaffinity",
        "uname", "set_blocking", "mkfifo", "getloadavg", "posix_fallocate", "O_CLOEXEC",
    )),
    (signal, (
        "SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGCHLD", "SIGQUIT", "SIGSTOP",
        "SIGCONT", "SIGTSTP", "SIGPIPE", "setitimer", "alarm", "pthread_kill", "pthread_sigmask",
        "siginterrupt", "sigwait",
    )),
    (select, ("poll", "epoll")),
    (selectors, ("PollSelector", "EpollSelector")),
    (socket, ("AF_UNIX",)),
)  # fmt: skip
MODULES = ("fcntl", "termios", "tty", "pty", "pwd", "grp", "resource", "readline", "syslog")
NO_FILES = ("/proc", "/sys")


def _asked_by_rmq(frame: FrameType | None) -> bool:
    """Return whether RMQ itself asks, and not pytest, psutil or the standard library for it."""
    name = frame.f_globals.get("__name__", "") if frame else ""
    return name.partition(".")[0] in ("rmq", "cli", "__main__")


def _without(names: frozenset[str]) -> type[ModuleType]:
    class Module(ModuleType):
        """A module that lacks some names for RMQ."""

        def __getattribute__(self, name: str) -> Any:
            if name in names and _asked_by_rmq(sys._getframe(1)):
                raise AttributeError(f"module has no attribute {name!r}", name=name, obj=self)
            return super().__getattribute__(name)

    return Module


class _Popen(subprocess.Popen[Any]):
    """Refuses what `subprocess` of Windows refuses."""

    def __init__(self, *args: Any, **options: Any) -> None:
        if _asked_by_rmq(sys._getframe(1)):
            if options.get("preexec_fn") is not None:
                raise ValueError("preexec_fn is not supported on Windows platforms")
            if options.get("pass_fds"):
                raise ValueError("pass_fds not supported on Windows.")
        super().__init__(*args, **options)


def _socketpair(*_: object) -> tuple[socket.socket, socket.socket]:
    """Return what Windows has in its place: two ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        outside = socket.create_connection(listener.getsockname())
        return outside, listener.accept()[0]


def remove() -> None:
    """Remove it, for the rest of this process."""
    for module, names in NAMES:
        module.__class__ = _without(frozenset(names))
    subprocess.Popen = _Popen  # type: ignore[misc, assignment]
    socket.socketpair = _socketpair  # type: ignore[assignment]
    opened, is_directory, imported = builtins.open, os.path.isdir, builtins.__import__

    def import_(name: str, *args: Any, **options: Any) -> Any:
        if name in MODULES and _asked_by_rmq(sys._getframe(1)):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return imported(name, *args, **options)

    def open_(file: Any, *args: Any, **options: Any) -> Any:
        if str(file).startswith(NO_FILES) and _asked_by_rmq(sys._getframe(1)):
            raise FileNotFoundError(2, "No such file or directory", file)
        return opened(file, *args, **options)

    def is_directory_(path: Any) -> bool:
        unseen = str(path).startswith(NO_FILES) and _asked_by_rmq(sys._getframe(1))
        return not unseen and is_directory(path)

    builtins.open, os.path.isdir = open_, is_directory_  # type: ignore[assignment]
    builtins.__import__ = import_
    asyncio.AbstractEventLoop.add_signal_handler = _no_signal_handler  # type: ignore[method-assign]
    asyncio.SelectorEventLoop.add_signal_handler = _no_signal_handler  # type: ignore[method-assign]


def _no_signal_handler(self: object, *args: object) -> None:
    raise NotImplementedError


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests that need what is not there."""
    kept = [item for item in items if item.get_closest_marker("posix") is None]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def main(arguments: Sequence[str]) -> None:
    """Run a program."""
    remove()
    sys.argv = [*arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
else:
    remove()  # -p tests.posixless
