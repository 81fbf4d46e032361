"""Processes that share an embedded directory, with real kills."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
import pytest

from rmq.kernel.transport.embedded import embedded
from rmq.kernel.transport.embedded.embedded import Embedded
from tests.integration.embedded_home import (
    HOLD,
    Others,
    client,
    free,
    home,
    others,
    servers,
    supervisors,
)
from tests.patience import wait_for

__all__ = ["home", "others"]  # fixtures


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
    wait_for(lambda: free(home))
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
    wait_for(lambda: not handle._server.answers() or victim is servers)
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
    code += "pid = fork()\nif not pid: time.sleep(300); os._exit(0)\n"
    code += "print(pid, flush=True); time.sleep(300)"
    process = others.run(code, home, int(hook))
    assert process.stdout is not None
    child = psutil.Process(int(process.stdout.readline()))
    process.kill()
    try:
        wait_for(lambda: free(home))
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


def test_sigterm_of_the_supervisor_stops_the_server_and_keeps_the_data(home: Path) -> None:
    handle = Embedded.open(home)
    with client(handle) as r:
        r.set("k", "kept")

    supervisors(home)[0].terminate()

    wait_for(lambda: free(home))
    handle.ensure()
    with client(handle) as r:
        assert r.get("k") == "kept"
    handle.close()


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
    wait_for(lambda: free(home))


def test_ensure_is_safe_in_many_threads(home: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    handle = Embedded.open(home)
    servers(home)[0].kill()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: handle.ensure(), range(8)))
    assert len(servers(home)) == 1
    handle.close()
