"""A network with two sides and a link between them that can be cut, in namespaces of the kernel.

A cut link tells nobody: no RST, no error, packets vanish, and those that TCP repeats arrive once
the link is whole again. It takes root and the program `ip`.

    left (10.89.0.1) --- a bridge --- right (10.89.0.2)

Namespaces have the number of this process in their names, so that those of a process that was
killed can be told, and removed by the next one.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

Side = Literal["left", "right"]
ADDRESSES: dict[Side, str] = {"left": "10.89.0.1", "right": "10.89.0.2"}
_MACS: dict[Side, str] = {"left": "02:00:00:00:00:01", "right": "02:00:00:00:00:02"}
_MOUNTS = Path("/run/netns")
_NAME = re.compile(r"rmq-test-(\d+)-\d+-\w+")
_CLONE_NEWNET = 0x40000000
_counter = itertools.count()


class NotPermitted(Exception):
    """This machine makes no namespaces for us."""


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode != 0:
        raise NotPermitted(f"ip {' '.join(words)}: {done.stderr.strip()[:200]}")


def names() -> list[str]:
    """The namespaces of tests, of all processes."""
    found = _MOUNTS.iterdir() if _MOUNTS.is_dir() else ()
    return sorted(path.name for path in found if _NAME.fullmatch(path.name))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def sweep() -> None:
    """Remove the namespaces of processes that are gone."""
    for name in names():
        told = _NAME.fullmatch(name)
        if told is not None and not _is_alive(int(told[1])):
            with contextlib.suppress(NotPermitted):  # another process removes it, too
                _ip("netns", "del", name)


class Network:
    """Two sides that reach each other until the link is cut.

    Attributes:
        cuts: how often it was.

    Raises:
        NotPermitted: this machine makes no namespaces for us.
    """

    def __init__(self) -> None:
        if shutil.which("ip") is None:
            raise NotPermitted("no program `ip`: apt-get install iproute2")
        sweep()
        stem = f"rmq-test-{os.getpid()}-{next(_counter)}"
        self._sides: dict[Side, str] = {side: f"{stem}-{side}" for side in ADDRESSES}
        self._switch = f"{stem}-switch"
        self.cuts = 0
        try:
            self._build()
        except BaseException:
            self.close()
            raise

    def _build(self) -> None:
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "bridge", "up")
        for side, name in self._sides.items():
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
            _ip(
                "-n", self._switch, "link", "add", side, "type", "veth",
                "peer", "name", "eth0", "address", _MACS[side], "netns", name,
            )  # fmt: skip
            _ip("-n", self._switch, "link", "set", side, "master", "bridge", "up")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "address", "add", f"{ADDRESSES[side]}/24", "dev", "eth0")
            for other, address in ADDRESSES.items():
                if other != side:  # without it a cut is noticed: nobody answers to ARP
                    _ip("-n", name, "neighbour", "add", address, "lladdr", _MACS[other],
                        "dev", "eth0", "nud", "permanent")  # fmt: skip

    @contextlib.contextmanager
    def inside(self, side: Side) -> Iterator[None]:
        """Be on a side: the sockets, threads and processes that this thread makes belong there."""
        with (
            Path("/proc/thread-self/ns/net").open() as home,
            (_MOUNTS / self._sides[side]).open() as there,
        ):
            _enter(there.fileno())
            try:
                yield
            finally:
                _enter(home.fileno())

    def cut(self) -> None:
        """Let nothing pass from one side to the other."""
        _ip("-n", self._switch, "link", "set", "left", "nomaster")
        self.cuts += 1

    def heal(self) -> None:
        """Let everything pass again."""
        _ip("-n", self._switch, "link", "set", "left", "master", "bridge")

    def close(self) -> None:
        """Remove it. Processes that are still there keep a namespace until they end."""
        for name in (*self._sides.values(), self._switch):
            if (_MOUNTS / name).exists():
                with contextlib.suppress(NotPermitted):
                    _ip("netns", "del", name)


def _enter(descriptor: int) -> None:
    """`os.setns` of Python 3.12."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET) != 0:
        raise NotPermitted(f"setns: {os.strerror(ctypes.get_errno())}")
