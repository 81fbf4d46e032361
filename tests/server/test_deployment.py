"""The unit, the container file and the compose file: what they name exists and starts."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from rmq.cli import cli
from rmq.kernel.core.validation import parse_duration
from rmq.server.config import SETTINGS, ServerConfig
from tests.server.running import PATIENCE_S, get, until
from tests.servers import Server as Redis, free_port

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
UNITS = {unit.stem: unit.read_text() for unit in sorted(DEPLOY.glob("*.service"))}
CONTAINER = (DEPLOY / "Containerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yml").read_text())
VARIABLES = {setting.variable for setting in SETTINGS}


def of_unit(name: str, unit: str = "rmq-server") -> list[str]:
    return re.findall(rf"^{name}=(.*)$", UNITS[unit], re.MULTILINE)


def command_of(words: list[str]) -> click.Command:
    """The command that these words call, with all its options known."""
    context = click.Context(cli)
    command = cli.get_command(context, words[0])
    if isinstance(command, click.Group):
        command = command.get_command(context, words[1]) or command.get_command(context, "run")
    assert command is not None, words
    known = {name for option in command.params for name in option.opts}
    assert {word for word in words if word.startswith("--")} <= known
    return command


def test_the_unit_calls_the_server_with_flags_that_it_has() -> None:
    (line,) = of_unit("ExecStart")
    program, *words = shlex.split(line)
    assert program.endswith("/bin/rmq")
    assert command_of(words).name == "server"
    flags = {setting.flag for setting in SETTINGS}
    assert {word for word in words if word.startswith("--")} <= flags
    grace_s = ServerConfig.load(
        {}, {"RMQ_SERVER_GRACE": words[words.index("--grace") + 1]}, "/dev/null"
    ).grace_s
    assert int(of_unit("TimeoutStopSec")[0]) > grace_s


@pytest.mark.parametrize("unit", UNITS)
def test_the_unit_gives_a_program_no_more_than_it_needs(unit: str) -> None:
    for name, value in {
        "DynamicUser": "yes", "ProtectSystem": "strict", "ProtectHome": "yes",
        "NoNewPrivileges": "yes", "CapabilityBoundingSet": "", "PrivateDevices": "yes",
    }.items():  # fmt: skip
        assert of_unit(name, unit) == [value], name
    (line,) = of_unit("ExecStart", unit)
    program, *words = shlex.split(line)
    assert program.endswith("/bin/rmq")
    command = command_of(words)
    assert {"rmq-server": "server", "rmq-worker": "run", "rmq-relay": "run"}[unit] == command.name
    assert int(of_unit("TimeoutStopSec", unit)[0]) >= 30
    assert "pypi.org" not in UNITS[unit]


def test_a_worker_is_stopped_later_than_its_grace() -> None:
    words = shlex.split(of_unit("ExecStart", "rmq-worker")[0])
    grace_s = parse_duration(words[words.index("--grace") + 1])
    assert int(of_unit("TimeoutStopSec", "rmq-worker")[0]) > grace_s


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="this machine has no systemd")
@pytest.mark.parametrize("unit_text", UNITS.values(), ids=UNITS)
def test_systemd_takes_the_unit_and_knows_every_word_of_it(tmp_path: Path, unit_text: str) -> None:
    program = tmp_path / "rmq"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)

    def verify(text: str) -> str:
        unit = tmp_path / "rmq-server.service"
        unit.write_text(re.sub(r"/opt/\w+/bin/rmq", str(program), text))
        ran = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit)],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        return "".join(line for line in ran.stderr.splitlines(True) if "rmq-server.service" in line)

    assert verify(unit_text) == ""
    assert "Unknown key" in verify(unit_text.replace("ProtectHome=", "ProtectHouse="))


def test_the_unit_starts_reloads_and_stops_the_server_as_systemd_would(
    server: Redis, prefix: str, spawn: Any
) -> None:
    _, *words = shlex.split(of_unit("ExecStart")[0])
    url = f"http://127.0.0.1:{(port := free_port())}"
    words += ["--url", server.url, "--prefix", prefix, "--listen", f"127.0.0.1:{port}"]

    running = spawn(*words, from_start=True)
    running.wait_for("this server leads")
    assert get(url + "/livez")[0] == 200
    running.send_signal(signal.SIGHUP)
    running.wait_for("settings read again")
    running.send_signal(signal.SIGTERM)

    assert running.wait() == 0
    for line in running.text().splitlines():
        json.loads(line)


def test_the_container_runs_the_server_as_an_unprivileged_user() -> None:
    words = json.loads(re.findall(r"^ENTRYPOINT (.*)$", CONTAINER, re.MULTILINE)[0])
    words += json.loads(re.findall(r"^CMD (.*)$", CONTAINER, re.MULTILINE)[0])
    assert words[0] == "rmq"
    assert command_of(words[1:]).name == "server"
    assert int(re.findall(r"^USER (\d+)$", CONTAINER, re.MULTILINE)[0]) > 0
    assert CONTAINER.index("\nUSER ") < CONTAINER.index("\nENTRYPOINT ")
    assert set(re.findall(r"\bRMQ_[A-Z_]+", re.sub(r"(?m)^#.*", "", CONTAINER))) <= VARIABLES
    extras = re.findall(r"/source\[([\w,]+)\]", CONTAINER)[0].split(",")
    project = (ROOT / "pyproject.toml").read_text()
    for extra in extras:
        assert re.search(rf"^{extra} = \[", project, re.MULTILINE)
    port = ServerConfig.load({}, {}, "/dev/null").listen.port
    assert re.findall(r"^EXPOSE (\d+)$", CONTAINER, re.MULTILINE) == [str(port)]


def test_the_health_check_of_the_container_tells_a_server_that_lives_from_one_that_does_not(
    server: Redis, prefix: str, spawn: Any
) -> None:
    (check,) = re.findall(r"^  CMD (\[.*\])$", CONTAINER, re.MULTILINE)
    port = free_port()
    _, *words = [part.replace("8800", str(port)) for part in json.loads(check)]

    def healthy() -> bool:
        ran = subprocess.run([sys.executable, *words], capture_output=True, timeout=PATIENCE_S)
        return ran.returncode == 0

    assert not healthy()
    spawn("server", "--url", server.url, "--prefix", prefix, "--listen", f"127.0.0.1:{port}")
    until(healthy, "a healthy server")


def test_the_compose_file_names_commands_and_variables_that_exist() -> None:
    services = COMPOSE["services"]
    assert set(services) == {"redis", "server", "worker"}
    assert "noeviction" in services["redis"]["command"]
    command_of(services["worker"]["command"])
    for name in ("server", "worker"):
        one = services[name]
        assert {v for v in one["environment"] if v.startswith("RMQ_")} <= VARIABLES
        assert one["environment"]["RMQ_URL"].startswith("redis://redis:")
        assert one["depends_on"]["redis"]["condition"] == "service_healthy"
        assert one["read_only"]
        assert one["cap_drop"] == ["ALL"]
    assert services["server"]["ports"] == ["127.0.0.1:8800:8800"]
    config = ServerConfig.load({}, services["server"]["environment"], "/dev/null")
    assert (config.choose_auth(None), "localhost" in config.hosts) == ("token", True)
    build = services["server"]["build"]
    assert (DEPLOY / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).is_file()
    text = (DEPLOY / "compose.yml").read_text()
    assert set(re.findall(r"\bRMQ_[A-Z_]+", text)) <= VARIABLES


@pytest.mark.skipif(shutil.which("docker") is None, reason="this machine has no docker")
def test_docker_compose_takes_the_file(tmp_path: Path) -> None:
    if subprocess.run(["docker", "compose", "version"], capture_output=True).returncode:
        pytest.skip("docker has no compose")
    ran = subprocess.run(
        ["docker", "compose", "-f", str(DEPLOY / "compose.yml"), "config", "--quiet"],
        capture_output=True, text=True, timeout=60, env=os.environ | {"HOME": str(tmp_path)},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr


def test_server_and_worker_of_the_compose_file_work_together(
    server: Redis, prefix: str, spawn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without containers: the same words and variables, as processes of this machine."""
    import rmq

    services = COMPOSE["services"]
    monkeypatch.setenv("PYTHONPATH", f"{DEPLOY / 'app'}{os.pathsep}{ROOT}")
    monkeypatch.setenv("RMQ_URL", server.url)
    monkeypatch.setenv("RMQ_PREFIX", prefix)
    worker = spawn(*services["worker"]["command"], from_start=True)
    monkeypatch.setenv("RMQ_SERVER_LISTEN", f"127.0.0.1:{free_port()}")
    running = spawn("server")
    running.wait_for("this server leads")
    with rmq.Client(server.url, prefix=prefix) as client:
        client.topic("hello").send("you")
        until(lambda: client.admin.stats("hello")["settled"] == 1, "the worker")
    assert "Traceback" not in worker.text()


def test_one_command_is_an_installation_for_a_newcomer(tmp_path: Path, spawn: Any) -> None:
    import rmq

    data = tmp_path / "data"
    running = spawn("server", "--embedded", str(data), "--listen", f"127.0.0.1:{free_port()}")
    running.wait_for("this server leads")
    with rmq.Client(f"embedded://{data}") as client:
        client.topic("orders").every("tick", every=1, body=1).declare()
        until(lambda: client.admin.stats("orders")["accepted"] >= 1, "the schedule")
    running.send_signal(signal.SIGTERM)
    assert running.wait() == 0


@pytest.mark.parametrize("auth", ["token", "none"])
def test_a_server_that_asks_for_tokens_says_how_to_make_one(
    server: Redis, prefix: str, spawn: Any, auth: str
) -> None:
    url = ("--url", server.url, "--prefix", prefix)
    running = spawn("server", *url, "--listen", f"127.0.0.1:{free_port()}", "--auth", auth)
    running.wait_for("serving redis")
    running.send_signal(signal.SIGTERM)
    assert running.wait() == 0
    assert ("requests need a token: rmq token create" in running.text()) == (auth == "token")
