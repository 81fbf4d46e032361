"""The embedded server in one process: start and stop, its directory, and what a crash leaves."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq.errors import EmbeddedError
from rmq.kernel.transport.embedded import embedded
from rmq.kernel.transport.embedded.embedded import Embedded
from tests.integration.embedded_home import Others, client, free, home, others

__all__ = ["home", "others"]  # fixtures


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
    monkeypatch.setattr(embedded, "_ANSWER_TIMEOUT_S", 0.6)
    home.mkdir()
    with (home / "rmq.lock").open("w") as lock:
        json.dump({"owner": 4711, "server": 4712, "socket": 5}, lock)
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(EmbeddedError, match=r"owner pid 4711.*nothing answers") as caught:
            Embedded.open(home)
    assert str(home) in str(caught.value)
