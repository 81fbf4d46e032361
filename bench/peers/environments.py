"""A separate environment for each peer, because peers need different versions of redis-py."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from bench.child import ROOT
from bench.peers.catalogue import NODE, Peer

HOMES = ROOT / ".venv" / "peers"
PATIENCE_S = 300


class Skipped(Exception):
    """A peer cannot be installed or run; the text is the reason, in one line."""


def reason(text: str) -> str:
    """Return the line with the reason in an output: the first with "error", else the last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith(("error", "npm error"))]
    return (errors or lines[-1:] or ["it printed nothing"])[0][:160]


def _run(command: list[str], where: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=where, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=PATIENCE_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise Skipped(f"installing took longer than {PATIENCE_S} s") from error
    if done.returncode:
        raise Skipped(reason(done.stdout))


def interpreter(peer: Peer) -> str:
    """Return the interpreter that runs the peer's worker and producer."""
    if peer.kind == NODE:
        return "node"
    return str(home(peer) / "bin" / "python") if peer.requires else sys.executable


def home(peer: Peer) -> Path:
    """Return the directory of its environment, which git ignores and `make clean` removes."""
    return HOMES / peer.name


def _base(peer: Peer) -> str:
    """Return an interpreter that is new enough for a peer: ours, or one from PATH or pyenv."""
    if sys.version_info >= peer.python:
        return sys.executable
    wanted = ".".join(map(str, peer.python))
    names = [f"python3.{minor}" for minor in range(peer.python[1], peer.python[1] + 5)]
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for name in names:
        kept = sorted(versions.glob(f"{name[6:]}.*/bin/python"))
        found = str(kept[-1]) if kept else shutil.which(name)
        if found:
            return found
    raise Skipped(f"needs Python {wanted} or later; here is {platform.python_version()}")


def ready(peer: Peer) -> bool:
    """Return whether the environment has the versions in the catalogue."""
    stamp = home(peer) / "requires.txt"
    return not peer.requires or (
        stamp.exists() and stamp.read_text().split() == list(peer.requires)
    )


def node() -> dict[str, str]:
    """Return the version of Node, for the description of the machine; empty without Node."""
    binary = shutil.which("node")
    if not binary:
        return {}
    output = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=10)
    return {"node": output.stdout.strip().removeprefix("v")}


def make(peer: Peer) -> None:
    """Install the packages of a peer.

    Raises:
        Skipped: They cannot be installed.
    """
    where, base = home(peer), _base(peer)
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir(parents=True)
    if peer.kind == NODE:
        if not (shutil.which("node") and shutil.which("npm")):
            raise Skipped("node and npm are not installed")
        _run(["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", ".",
              *peer.requires], where)  # fmt: skip
    else:
        _run([base, "-m", "venv", "."], where)
        _run(["bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
              *peer.requires], where)  # fmt: skip
    (where / "requires.txt").write_text("\n".join(peer.requires) + "\n")
