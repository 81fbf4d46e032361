"""Stop an embedded Redis when the process that started it ends.

The process that started the server is its owner. The supervisor is a small process between owner
and server. `embedded.py` runs this file as a script, by its path, so this file uses only the
standard library. The supervisor locks the directory, starts the server, and writes one line of JSON
to stdout for its owner. It then sleeps until one of these events:

* Stdin ends, the owner ends, or SIGTERM arrives: the supervisor stops the server and ends.
* The server ends: the supervisor also ends.

The server inherits the lock, so the directory is locked while the supervisor or the server runs.
Functions without an underscore define the layout of the directory; `embedded.py` also calls them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

LOCK = "rmq.lock"
LOG = "redis.log"
SOCKET = "redis.sock"
VERSION = "redis.version"  # the server that last wrote the directory, for example "Redis 7.0.15"

_STOP_TIMEOUT_S = 10.0  # seconds that the server gets to write its AOF before SIGKILL
_LOG_LIMIT = 1 << 20  # size in bytes above which the next start truncates the log
_PATH_LIMIT = 100  # longest path of a unix socket on all systems, bytes
_PR_SET_PDEATHSIG = 1


class Refusal(Exception):
    """Raised if the server cannot be started or used. Its text is for the user."""


def socket_path(directory: str) -> str:
    """Return the path of the server's unix socket.

    The socket is in the directory. If this path is too long for a unix socket, the socket is in a
    private directory under TMPDIR.
    """
    path = os.path.join(directory, SOCKET)
    if len(os.fsencode(path)) <= _PATH_LIMIT:
        return path
    import hashlib
    import tempfile

    mark = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
    home = os.path.join(os.path.realpath(tempfile.gettempdir()), f"rmq-{os.geteuid()}-{mark}")
    path = os.path.join(home, SOCKET)
    if len(os.fsencode(path)) > _PATH_LIMIT:
        raise Refusal(
            f"the path is too long for a unix socket, and so is {path}: use a shorter directory, "
            "or a shorter TMPDIR"
        )
    return path


def prepare(directory: str) -> None:
    """Create the directory, or check that an existing directory can be used."""
    try:
        with contextlib.suppress(FileExistsError):
            os.makedirs(directory, 0o700)
        status = os.stat(directory)
        if not stat.S_ISDIR(status.st_mode):
            raise Refusal("this is not a directory")
        inside = os.listdir(directory)
        ours = status.st_uid == os.geteuid() and not status.st_mode & stat.S_ISVTX
        if ours and (not inside or LOCK in inside):
            os.chmod(directory, 0o700)
        elif status.st_mode & 0o022:
            raise Refusal("other users may write there; name a new directory in it, or chmod 700")
        path = os.path.join(directory, LOCK)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise Refusal(
            f"{error.strerror}: {error.filename}; name a directory that this user may write to"
        ) from error


def record(directory: str) -> dict[str, Any]:
    """Return the data that the running supervisor has written into the lock file.

    If the supervisor has ended, or if the file is unreadable, the result is empty.
    """
    try:
        with open(os.path.join(directory, LOCK), "rb") as file:
            state = json.loads(file.read(65536))
    except (OSError, ValueError, RecursionError):
        return {}
    return state if isinstance(state, dict) else {}


def log_tail(directory: str) -> str:
    """Return the last lines of the server's log."""
    try:
        with open(os.path.join(directory, LOG), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 2000))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-6:])
    except OSError:
        return "(no log)"


def permission_problem(directory: str) -> str | None:
    """Return why a directory is not private enough for the socket, or None if it is private.

    This directory has only the socket, not the data.
    """
    status = os.lstat(directory)
    if not stat.S_ISDIR(status.st_mode):
        return "it is not a directory"
    if status.st_uid != os.geteuid():
        return f"it belongs to uid {status.st_uid}"
    if status.st_mode & 0o077:
        return f"its mode is {stat.S_IMODE(status.st_mode):04o}, not 0700"
    return None


def server_arguments(directory: str, address: str) -> list[str]:
    """Return the configuration of the server, as arguments of its command line."""
    return [
        *("--port", "0"),
        *("--unixsocket", address, "--unixsocketperm", "700"),
        *("--dir", directory, "--daemonize", "no"),
        *("--appendonly", "yes", "--appendfsync", "everysec", "--aof-load-truncated", "yes"),
        *("--save", "", "--maxmemory-policy", "noeviction"),
    ]


class Version(NamedTuple):
    """Name and version of a server program."""

    name: str  # "Redis" or "Valkey"
    numbers: tuple[int, ...]

    @property
    def short(self) -> str:
        """The version without the patch number, for example "7.0"."""
        return ".".join(map(str, self.numbers[:2]))

    def __str__(self) -> str:
        return f"{self.name} {'.'.join(map(str, self.numbers))}"


def version_of(binary: str) -> Version | None:
    """Return the version that a server program prints. If it prints no version, return None."""
    try:
        output = subprocess.run(
            [binary, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=10
        ).stdout.decode(errors="replace")
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"(\w+) server v=(\d+(?:\.\d+)*)", output)
    return match and Version(match[1], tuple(map(int, match[2].split("."))))


def written_by(directory: str) -> Version | None:
    """Return the server that last wrote a directory, or None if it is not recorded."""
    try:
        with open(os.path.join(directory, VERSION), encoding="ascii", errors="replace") as file:
            match = re.fullmatch(r"(\w+) (\d+(?:\.\d+)*)\s*", file.read(100))
    except OSError:
        return None
    return match and Version(match[1], tuple(map(int, match[2].split("."))))


def reads(version: Version, wrote: Version) -> bool:
    """Return whether a server can read the files that another server has written.

    The RDB files of Redis 7.4 and of Valkey 9 have different formats. Neither server can read the
    files of the other.
    """
    if version.name == wrote.name:
        return version.numbers[:2] >= wrote.numbers[:2]
    if (version.name, wrote.name) == ("Valkey", "Redis"):
        return wrote.numbers[:2] <= (7, 2)
    if (version.name, wrote.name) == ("Redis", "Valkey"):
        return version.numbers[:2] >= (7, 2) and wrote.numbers[0] < 9
    return True  # an unknown server reports unreadable files itself


def _refuse_unreadable(directory: str, binary: str) -> None:
    """Raise a Refusal if a server cannot read the directory.

    Otherwise the server would stop, or would start without the data. For example, Redis 7 moved the
    AOF to a folder that older versions do not read.
    """
    version, wrote = version_of(binary), written_by(directory)
    folder = os.path.join(directory, "appendonlydir")
    if wrote is not None and version is not None:
        if reads(version, wrote):
            return
        what = f"{directory} was written by {wrote}"
    elif not os.path.isdir(folder) or (version is not None and version.numbers[0] >= 7):
        return
    else:
        what = f"{folder} was written by Redis 7 or later"
    pip = 'pip install --upgrade ".[embedded]" in a checkout of RMQ'
    if wrote is None or reads(Version("Valkey", (9,)), wrote):
        newer = f"redis-server {wrote.short if wrote else 7} or later, or Valkey: {pip}"
    elif wrote.name == "Valkey":
        newer = f"valkey-server {wrote.short} or later: {pip}"
    else:
        newer = f"{wrote.name.lower()}-server {wrote.short} or later"
    raise Refusal(
        f"{what}, and {binary} is {version or 'of unknown version'}, which does not read that "
        f"data. Install {newer}; or name a server in RMQ_REDIS_SERVER, or use another directory"
    )


def _note(directory: str, binary: str) -> None:
    """Record in the directory which server now writes the files."""
    version = version_of(binary)
    if version is not None and version != written_by(directory):
        path = os.path.join(directory, VERSION)
        with open(f"{path}.new", "w", encoding="ascii") as file:
            file.write(f"{version}\n")
        os.replace(f"{path}.new", path)


def _die_with_parent() -> Callable[[], None] | None:
    """Return a function that makes the server end when the supervisor ends.

    The server's new process calls the function before exec.
    """
    if sys.platform != "linux":
        return None
    try:
        import ctypes

        prctl = ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        return None
    parent = os.getpid()

    def bind() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:  # the parent died before `prctl`
            os._exit(1)

    return bind


def _start(directory: str, address: str, binary: str, lock: int) -> subprocess.Popen[bytes]:
    _refuse_unreadable(directory, binary)
    _note(directory, binary)
    home = os.path.dirname(address)
    if home != directory:
        with contextlib.suppress(FileExistsError):
            os.mkdir(home, 0o700)
        if fault := permission_problem(home):
            raise Refusal(f"its socket would be in {home}, but {fault}: remove it")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(address)  # a dead server left it, because this process has the lock
    path = os.path.join(directory, LOG)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    if os.fstat(log).st_size > _LOG_LIMIT:
        os.ftruncate(log, 0)
    os.dup2(log, 2)  # for tracebacks of the supervisor
    return subprocess.Popen(
        [binary, *server_arguments(directory, address)],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        cwd=directory,
        pass_fds=(lock,),
        preexec_fn=_die_with_parent(),
    )


def _report_to_owner(**fact: object) -> None:
    """Write the line of JSON for which the owner waits, and close the pipe to the owner."""
    with contextlib.suppress(BrokenPipeError):
        os.write(1, json.dumps(fact).encode() + b"\n")
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def _watch(server: subprocess.Popen[bytes], owner: int, pidfd: int | None, wakeup: int) -> None:
    poll = select.poll()
    for fd in (0, wakeup, pidfd):
        if fd is not None:
            poll.register(fd, select.POLLIN)
    while server.poll() is None and os.getppid() == owner:
        ready = {fd for fd, _ in poll.poll(500 if pidfd is None else None)}
        if ready & {0, pidfd}:
            return
        if wakeup in ready and any(os.read(wakeup, 64).replace(bytes([signal.SIGCHLD]), b"")):
            return


def _stop(server: subprocess.Popen[bytes]) -> None:
    if server.poll() is None:
        server.terminate()
        try:
            server.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def main(directory: str, address: str, binary: str, owner: int) -> int:
    """Run one server, from its start to its end."""
    import fcntl

    os.umask(0o077)
    wakeup, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # the owner's thread may have blocked signals
    pidfd: int | None = None
    with contextlib.suppress(AttributeError, OSError):
        pidfd = os.pidfd_open(owner)
    if os.getppid() != owner:
        return 1
    try:
        path = os.path.join(directory, LOCK)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _report_to_owner(busy=True)
            return 0
        server = _start(directory, address, binary, lock)
    except (Refusal, OSError, subprocess.SubprocessError) as error:
        _report_to_owner(error=str(error))
        return 1
    try:
        pids = {"owner": owner, "supervisor": os.getpid(), "server": server.pid}
        os.ftruncate(lock, 0)
        os.pwrite(lock, json.dumps({**pids, "socket": address}).encode() + b"\n", 0)
        _report_to_owner(started=server.pid)
        _watch(server, owner, pidfd, wakeup)
    finally:
        _stop(server)
        with contextlib.suppress(OSError):
            os.ftruncate(lock, 0)
        with contextlib.suppress(OSError):
            os.unlink(address)
        if os.path.dirname(address) != directory:
            with contextlib.suppress(OSError):
                os.rmdir(os.path.dirname(address))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
