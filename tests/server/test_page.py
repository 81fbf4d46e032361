"""docs/server.md: its commands, run against a server, and its list of paths."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import rmq
from tests.server.running import serving
from tests.servers import Server as Redis

WITHOUT_PATH = {  # verbs of Admin, and why no request does them
    "spans": "cursors do the same for one reader",
    "job_run": "the services of the server run jobs",
    "dead_letter_edit": "the console and the command line show the old body first",
    "sweep_offloaded": "it lists a whole store, for minutes; a server may not have it",
    **dict.fromkeys(("tokens", "token_create", "token_revoke"), "a server may not make its rights"),
}
PAGE = Path(__file__).parents[2] / "docs" / "server.md"


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on PATH")
def test_the_calls_of_the_page_do_what_they_show(
    server: Redis, prefix: str, tmp_path: Path
) -> None:
    (script,) = re.findall(r"^```bash\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    calls = len(re.findall(r"^curl (?!.* > )", script, re.MULTILINE))

    with serving(server.url, prefix) as running:
        script = script.replace("http://127.0.0.1:8800", running.url)
        script = script.replace("curl ", r"curl -sS -w '\n' ")
        done = subprocess.run(
            ["bash", "-e", "-c", script],
            capture_output=True, text=True, timeout=60, cwd=tmp_path,
        )  # fmt: skip

    assert (done.returncode, done.stderr) == (0, "")
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == calls
    assert [
        answer for answer in answers if "status" in answer and answer["status"] != "stored"
    ] == []
    assert calls > 10
    assert [each.name for each in tmp_path.iterdir()] == ["dead.ndjson"]
    assert answers[1]["id"] in {message["id"] for message in answers[2]["messages"]}


def test_the_page_lists_every_path() -> None:
    from rmq.server.api import TABLES

    listed = re.findall(r"^\| `([A-Z]+) (/[^`]*)` \|", PAGE.read_text(), re.MULTILINE)

    assert listed == [(each.method, each.path) for table in TABLES for each in table.operations]


def test_every_verb_of_admin_has_a_path() -> None:
    rows = re.findall(r"^\| `[A-Z]+ /[^`]*` \|.*\|(.*)\|$", PAGE.read_text(), re.MULTILINE)
    listed = {verb for row in rows for verb in re.findall(r"`(\w+)`", row)}

    verbs = {name for name in dir(rmq.AsyncAdmin) if not name.startswith("_")}

    assert listed - verbs == set()
    assert verbs - listed == set(WITHOUT_PATH)
