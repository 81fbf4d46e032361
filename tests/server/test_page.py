"""The commands of docs/server.md, run against a server."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.server.running import serving
from tests.servers import Server as Redis

PAGE = Path(__file__).parents[2] / "docs" / "server.md"


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on PATH")
def test_the_calls_of_the_page_do_what_they_show(server: Redis, prefix: str) -> None:
    (script,) = re.findall(r"^```bash\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    calls = script.count("curl ")

    with serving(server.url, prefix) as running:
        script = script.replace("http://127.0.0.1:8800", running.url)
        script = script.replace("curl ", r"curl -sS -w '\n' ")
        done = subprocess.run(
            ["bash", "-e", "-c", script], capture_output=True, text=True, timeout=60
        )

    assert (done.returncode, done.stderr) == (0, "")
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == calls == 9
    assert [
        answer for answer in answers if "status" in answer and answer["status"] != "stored"
    ] == []
    assert answers[1]["id"] in {message["id"] for message in answers[2]["messages"]}
