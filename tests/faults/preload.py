"""A server that begins with a small library of ours: what it is told of its disk or its clock."""

from __future__ import annotations

import shlex
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

COMPILER = shutil.which("cc") or shutil.which("gcc")


def preloaded(binary: str, source: str, folder: Path, **environment: object) -> str:
    """Return a program that starts the binary with the library of that source (`lose`, `clock`)."""
    if COMPILER is None:
        pytest.skip("no C compiler: apt-get install gcc libc6-dev")
    library, start = folder / f"{source}.so", folder / f"start-{source}"
    code = Path(__file__).with_name(f"{source}.c")
    subprocess.run([COMPILER, "-shared", "-fPIC", "-O1", "-o", library, code, "-ldl"], check=True)
    words = {"LD_PRELOAD": library, **environment}
    set_ = " ".join(f"{name}={shlex.quote(str(value))}" for name, value in words.items())
    start.write_text(f'#!/bin/sh\n{set_} exec {shlex.quote(binary)} "$@"\n')
    start.chmod(0o700)
    return str(start)


class Clock:
    """The wall clock of a server, which steps."""

    def __init__(self, folder: Path) -> None:
        self.offset_ms = 0
        self._file = folder / "offset"
        self._file.write_bytes(bytes(8))
        self._folder = folder

    def program(self, binary: str) -> str:
        """Return a program that starts the binary with this clock."""
        return preloaded(binary, "clock", self._folder, RMQ_CLOCK=self._file)

    def step_to(self, offset_ms: int) -> None:
        """Let it be so much ahead of the machine's clock from now on; below 0: behind."""
        self.offset_ms = offset_ms
        with self._file.open("r+b") as file:
            file.write(struct.pack("=q", offset_ms * 1000))
