"""docs/http.md: its commands and programs, run against a server, and what it lists."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import rmq
from rmq.features.http_consumers.http import TABLE, HttpDelivery
from rmq.http_framework.problems import KINDS
from rmq.server.config import POLLS
from tests.server.running import serving, until
from tests.servers import Server as Redis, die_with_parent

PAGE = Path(__file__).parents[2] / "docs" / "http.md"
TEXT = PAGE.read_text()
ADDRESS = "http://127.0.0.1:8800"
PROGRAMS = {"js": ["node", "consumer.mjs"], "go": ["go", "run", "consumer.go"]}


def blocks(kind: str) -> list[str]:
    """The blocks of the page whose fence begins with a word."""
    return re.findall(rf"^```{kind}\b[^\n]*\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on PATH")
def test_the_commands_of_the_page_send_receive_and_ack(
    client: rmq.Client, server: Redis, prefix: str
) -> None:
    (script,) = blocks("bash")
    with serving(server.url, prefix) as running:
        script = script.replace(ADDRESS, running.url).replace("curl ", r"curl -sS -w '\n' ")
        done = subprocess.run(
            ["bash", "-e", "-c", script], capture_output=True, text=True, timeout=60, check=False
        )

    assert (done.returncode, done.stderr) == (0, "")
    _, sent, settled = map(json.loads, done.stdout.splitlines())
    assert (sent["status"], settled) == ("stored", {"settled": 1, "lost": []})
    assert client.admin.stats("orders")["settled"] == 1


@pytest.mark.parametrize(
    "kind",
    ["js", pytest.param("go", marks=pytest.mark.slow)],  # go compiles its own library first
)
def test_a_program_of_the_page_handles_and_acks_messages(
    client: rmq.Client, server: Redis, prefix: str, tmp_path: Path, kind: str
) -> None:
    words = PROGRAMS[kind]
    if shutil.which(words[0]) is None:
        pytest.skip(f"no {words[0]} on PATH; neither .ci/run nor make installs it")
    (program,) = blocks(kind)
    bodies: list[Any] = [{"order": 7}, "\u00e9", None]
    topic = client.topic("orders")
    topic.send_many([rmq.Outgoing(body) for body in bodies])
    with serving(server.url, prefix) as running:
        (tmp_path / words[-1]).write_text(program.replace(ADDRESS, running.url))
        with subprocess.Popen(
            words, cwd=tmp_path, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent,
            start_new_session=True,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            printed = [process.stdout.readline() for _ in bodies]
            until(lambda: client.admin.stats("orders")["settled"] == len(bodies), "the acks")
            process.kill()

    assert [json.loads(line) for line in printed] == bodies


def test_the_page_names_each_verb_field_and_limit() -> None:
    for operation in TABLE.operations:
        assert re.search(rf"`(POST \S*/)?{operation.path.rpartition('/')[2]}`", TEXT), operation
        for name in operation.types["body"].__struct_fields__:
            assert f"`{name}`" in TEXT or f'"{name}"' in TEXT, name
    for name in HttpDelivery.__struct_fields__:
        assert f"`{name}`" in TEXT, name
    assert f"{POLLS} for each token" in TEXT


def test_each_error_of_the_page_has_its_status() -> None:
    rows = re.findall(r"^\| (\d{3}) \| `([a-z-]+)` \|", TEXT, re.MULTILINE)

    assert len(rows) > 9
    assert [(kind, KINDS[kind].status) for _, kind in rows] == [
        (kind, int(status)) for status, kind in rows
    ]
    assert {"bad-receipt", "lease-lost", "too-many-polls"} <= {kind for _, kind in rows}
