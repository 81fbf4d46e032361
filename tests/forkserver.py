"""Processes of Python that start in milliseconds: forks of a server that has their modules.

A process of the tests takes up to 0.8 s of CPU to import RMQ and SQLAlchemy, and hundreds are
started. `Forked(module, ...)` is what `python -m module` would be, but for the imports: a process
with its own argv, files, directory and environment. It ends as any interpreter ends, threads and
`atexit` included; what follows is left out: taking apart modules that it shares with the server,
which is most of what such a process would cost. The server has one thread and does nothing but
import and fork. It ends with the process that started it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from tests.patience import wait_for

ROOT = Path(__file__).parents[1]
DRIVERS = ("sqlalchemy.dialects.postgresql.psycopg", "psycopg", "pymysql", "sqlite3")
START_S = 60.0
_LENGTH = 8
_NUMBER = 4  # bytes of a pid
_LOCK = threading.Lock()
File = IO[Any] | int
FILES_MAX = 8  # that a process can be given
_server: subprocess.Popen[bytes] | None = None  # if this process has started it
_socket: str | None = None  # where the server listens


class Forked:
    """A process that runs the `main` of a module with `words`; it has the methods of a `Popen`.

    Args:
        stdin, stdout, stderr: files, or as for a `Popen`: DEVNULL, PIPE, STDOUT.
        env: variables, but for those that an interpreter reads when it starts, as PYTHONPATH.
        pass_fds: files that it inherits; their numbers there follow `words`.
        text: whether our ends of pipes are of text.
    """

    cpu_s = 0.0  # of all that have ended, and that this process has waited for

    def __init__(
        self, module: str, *words: str, stdin: File = subprocess.DEVNULL,
        stdout: File = subprocess.DEVNULL, stderr: File = subprocess.DEVNULL, cwd: Path = ROOT,
        env: Mapping[str, str] | None = None, text: bool = True, pass_fds: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.args = (module, *words)
        self.returncode: int | None = None
        environment = dict(os.environ if env is None else env)
        task = {"module": module, "words": words, "cwd": str(cwd), "env": environment}
        data, kind = json.dumps(task).encode(), "" if text else "b"
        self._lock = threading.Lock()
        self._told = socket.socket(socket.AF_UNIX)
        with _LOCK:
            self._told.connect(start())
        with contextlib.ExitStack() as theirs:
            self.stdin, read = _open(stdin, "w" + kind, theirs)
            self.stdout, write = _open(stdout, "r" + kind, theirs)
            if stderr == subprocess.STDOUT:
                self.stderr, errors = None, write
            else:
                self.stderr, errors = _open(stderr, "r" + kind, theirs)
            length = len(data).to_bytes(_LENGTH, "big")
            socket.send_fds(self._told, [length], [read, write, errors, *pass_fds])
            self._told.sendall(data)
            (self.pid,) = self._numbers(START_S)

    def _numbers(self, seconds: float | None) -> list[int]:
        """Read the next that the server says: the pid, then the exit code and its CPU's ms."""
        self._told.settimeout(seconds)
        said = b""
        try:
            while not said.endswith(b"\n"):
                byte = self._told.recv(1)
                assert byte, "the fork server is gone"
                said += byte
        except (BlockingIOError, TimeoutError):
            raise subprocess.TimeoutExpired("forked", seconds or 0) from None
        return [int(number) for number in said.split()]

    def poll(self) -> int | None:
        with self._lock:  # threads may wait for one process, as they may with a Popen
            if self.returncode is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.returncode, cpu_ms = self._numbers(0)
                    self._told.close()
                    Forked.cpu_s += cpu_ms / 1000
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        until = time.monotonic() + (float("inf") if timeout is None else timeout)
        while (code := self.poll()) is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired("forked", timeout or 0)
            time.sleep(0.005)
        return code

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
        """Write to its stdin, close it, read all that it prints, and wait for its end."""
        with ThreadPoolExecutor(2) as readers:
            told = [one and readers.submit(one.read) for one in (self.stdout, self.stderr)]
            if self.stdin is not None:
                with contextlib.suppress(BrokenPipeError), self.stdin as stdin:
                    if input is not None:
                        stdin.write(input)
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()  # or the readers would wait for ever
                raise
        return told[0] and told[0].result(), told[1] and told[1].result()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _open(file: File, mode: str, theirs: contextlib.ExitStack) -> tuple[IO[Any] | None, int]:
    """Return our end of a pipe, if one is asked for, and the number of theirs."""
    if file == subprocess.PIPE:
        ends = os.pipe()
        ours, other = ends if mode[0] == "r" else reversed(ends)
        theirs.callback(os.close, other)
        return open(ours, mode), other
    if file == subprocess.DEVNULL:
        number = os.open(os.devnull, os.O_RDWR)
        theirs.callback(os.close, number)
        return None, number
    return None, file if isinstance(file, int) else file.fileno()


def start(output: File | None = None) -> str:
    """Start the server of this process and of its forks, once; return where it listens.

    Args:
        output: for what it may print.
    """
    global _server, _socket
    if _socket is None:
        path = str(Path(tempfile.mkdtemp(prefix="rmq-fork-"), "socket"))
        # Its stdin closes with this process. It may outlive the thread that starts it.
        _server = subprocess.Popen(
            [sys.executable, "-m", "tests.forkserver", path], cwd=ROOT, stdin=subprocess.PIPE,
            stdout=output, stderr=output,
        )  # fmt: skip
        wait_for(lambda: os.path.exists(path), "the fork server does not start", START_S)
        _socket = path
    return _socket


def close() -> None:
    """End the server of this process, if it has one."""
    global _server, _socket
    if _server is not None:
        _server.communicate()
        _server = _socket = None


# --- in the server -------------------------------------------------------------------------------


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    head, files, _, _ = socket.recv_fds(connection, _LENGTH, FILES_MAX)
    left, text = int.from_bytes(head, "big"), b""
    while len(text) < left:
        text += connection.recv(left - len(text))
    return json.loads(text), files


def _warm(module: str) -> None:
    """Import what the process will need; it reports itself what cannot be imported."""
    with contextlib.suppress(ImportError):
        importlib.import_module(module)
        if "sqlalchemy" in sys.modules:
            for driver in DRIVERS:
                importlib.import_module(driver)


def _peer(connection: socket.socket) -> int:
    """Return the pid of the process that asked for a fork."""
    if sys.platform != "linux":
        return 0
    size = 3 * _NUMBER
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return int.from_bytes(peer[:_NUMBER], sys.byteorder)


def _reap(running: dict[int, socket.socket], cpu_ms_below: Counter[int]) -> None:
    """Tell those that asked for forks that they have ended.

    `cpu_ms_below`: CPU of the forks that each fork had asked for; it counts as that fork's.
    """
    for pid in list(running):
        found, status, used = os.wait4(pid, os.WNOHANG)
        if found:
            cpu_ms = round(1000 * (used.ru_utime + used.ru_stime)) + cpu_ms_below.pop(pid, 0)
            if (asking := _peer(running[pid])) in running:
                cpu_ms_below[asking] += cpu_ms
            with running.pop(pid) as connection, contextlib.suppress(OSError):
                connection.sendall(b"%d %d\n" % (os.waitstatus_to_exitcode(status), cpu_ms))


def _serve(path: str) -> dict[str, Any]:
    """Fork for each connection. Returns in a fork only: with its task."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path + ".new")
    listening.listen(64)
    woken, wakes = socket.socketpair()
    for end in (woken, wakes):
        end.setblocking(False)
    before = signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes.fileno())
    os.rename(path + ".new", path)
    running: dict[int, socket.socket] = {}
    cpu_ms_below: Counter[int] = Counter()
    _warm("tests.heartbeats")
    while True:
        ready = select.select([listening, woken, sys.stdin], [], [])[0]
        if sys.stdin in ready:
            shutil.rmtree(Path(path).parent, ignore_errors=True)
            os._exit(0)  # the tests are over
        if woken in ready:
            woken.recv(4096)
            _reap(running, cpu_ms_below)
        if listening not in ready:
            continue
        connection = listening.accept()[0]
        task, files = _receive(connection)
        _warm(task["module"])
        gc.freeze()  # or each fork copies, at its first collection, what it shares with the server
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, before)
            for number, file in enumerate(files[:3]):
                os.dup2(file, number)
            for one in (*running.values(), connection, listening, woken, wakes):
                one.close()
            for file in files[:3]:
                os.close(file)
            task["words"] += map(str, files[3:])
            task["socket"] = path
            return task
        for file in files:
            os.close(file)
        running[pid] = connection
        connection.sendall(b"%d\n" % pid)


def _run(task: dict[str, Any]) -> Any:
    """Be the process that was asked for."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # with the server
    os.chdir(task["cwd"])
    os.environ.clear()
    os.environ.update(task["env"])
    sys.path[0] = task["cwd"]
    # Anew, because how a stream buffers depends on what it leads to.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.argv[:] = [task["module"], *task["words"]]
    forks: Any = importlib.import_module("tests.forkserver")
    forks._socket = task["socket"]
    importlib.import_module("tests.heartbeats").fork_them()
    return importlib.import_module(task["module"]).main(*task["words"])


def _end(code: Any) -> None:
    """End as `sys.exit(code)` does, up to where the interpreter takes itself apart."""
    if not isinstance(code, int | None):
        raise SystemExit(code)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit((code or 0) & 0xFF)


if __name__ == "__main__":
    try:
        code = _run(_serve(sys.argv[1]))
    except SystemExit as ended:
        code = ended.code
    _end(code)
