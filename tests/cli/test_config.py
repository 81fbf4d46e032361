from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rmq.cli.root import VARIABLES
from rmq.server.config import SETTINGS

ROOT = Path(__file__).resolve().parents[2]
# Of processes to those that they start; no person sets them.
INTERNAL = {"RMQ_PROCESS_NUMBER", "RMQ_DJANGO_WORKER"}


@pytest.fixture
def bare(run, monkeypatch, tmp_path):
    """`rmq config show` without settings of this machine, in a directory of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RMQ_URL")
    return lambda *words, **env: run("config", "show", *words, **env)


def rows(done):
    return {row["setting"]: row for row in json.loads(done.stdout)}


def test_every_setting_is_shown_with_its_default(bare):
    shown = rows(bare("--json"))

    assert set(shown) == {
        "config", *(setting.key for setting in SETTINGS), *(each.name for each in VARIABLES)
    }  # fmt: skip
    assert {row["origin"] for row in shown.values()} == {"default"}
    assert shown["url"]["value"] == "redis://localhost:6379/0"
    assert shown["server.grace"]["value"] == "10s"
    assert shown["server.listen"]["value"] == "127.0.0.1:8800"
    assert shown["server.log_json"]["value"] is False
    assert shown["RMQ_MAX_MEMORY"]["value"] is None
    text = bare(COLUMNS="80").stdout
    assert re.search(r"^server.grace +10s +default +rmq server$", text, re.MULTILINE)
    assert max(map(len, text.splitlines())) <= 80


def test_every_variable_of_the_code_is_shown():
    files = [path.read_text() for path in (ROOT / "rmq").rglob("*.py")]
    used = {name for text in files for name in re.findall(r"\"(RMQ_[A-Z_]+)\"", text)}

    known = {each.name for each in VARIABLES} | {setting.variable for setting in SETTINGS}
    assert used - known - INTERNAL == {"RMQ_CONFIG"}


def test_origins_are_told_and_a_flag_wins(bare, tmp_path):
    file = tmp_path / "rmq.toml"
    file.write_text('url = "redis://file/0"\nprefix = "file"\n[server]\ngrace = "1m"\n')

    done = bare("--json", "--prefix", "flag", RMQ_SERVER_GRACE="5s", RMQ_MAX_MESSAGES="7")

    shown = rows(done)
    origins = {name: (row["value"], row["origin"]) for name, row in shown.items()}
    assert origins["config"] == ("rmq.toml", "default")
    assert origins["url"] == ("redis://file/0", "rmq.toml")
    assert origins["prefix"] == ("flag", "--prefix")
    assert origins["server.grace"] == ("5s", "RMQ_SERVER_GRACE")
    assert origins["RMQ_MAX_MESSAGES"] == ("7", "RMQ_MAX_MESSAGES")
    assert bare().stderr == ""
    named = rows(bare("--json", "--config", str(file)))
    assert (named["config"]["value"], named["config"]["origin"]) == (str(file), "--config")


def test_secrets_are_hidden(bare):
    env = {
        "RMQ_URL": "redis://shop:sesame7@host/0?password=sesame7",
        "RMQ_DATABASE_URL": "postgresql://shop:sesame7@db/shop",
        "RMQ_OUTBOX_WEBHOOK": "https://hooks.example/T0/sesame7",
        "RMQ_KEYS": "1:sesame7",
    }

    for done in (bare("--json", **env), bare(**env)):
        assert "sesame7" not in done.stdout + done.stderr
        assert "shop:***@host" in done.stdout
        assert "hooks.example" not in done.stdout


def test_file_that_cannot_be_read_is_wrong_usage(bare):
    assert bare("--config", "/no/such/file").exit_code == 2


@pytest.fixture
def anywhere(run, monkeypatch, tmp_path):
    """Runs commands without RMQ_URL, in a directory of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RMQ_URL")
    return run


def test_url_and_prefix_of_the_file_hold_for_every_command(
    anywhere, server, client, name, tmp_path
):
    file = tmp_path / "rmq.toml"
    file.write_text(f'url = "{server.url}"\nprefix = "file-{name}"\n[server]\ngrace = "1m"\n')

    assert anywhere("topic", "create", name).exit_code == 0
    assert anywhere("send", name, "1").exit_code == 0

    assert name not in client.admin.topics()
    assert anywhere("stats", name, "--json", "--prefix", f"file-{name}").exit_code == 0
    assert anywhere("stats", name, "--prefix", "other").exit_code == 3, "a flag wins"
    assert anywhere("stats", name, RMQ_PREFIX="other").exit_code == 3, "so does a variable"
    nowhere = anywhere("stats", name, RMQ_URL="redis://127.0.0.1:1/0")
    assert (nowhere.exit_code, "127.0.0.1:1" in nowhere.stderr) == (5, True)
    elsewhere = tmp_path / "other.toml"
    elsewhere.write_text('prefix = "other"')
    assert anywhere("stats", name, RMQ_CONFIG=str(elsewhere), RMQ_URL=server.url).exit_code == 3
    file.unlink()
    assert anywhere("stats", name, RMQ_URL=server.url).exit_code == 3, "a control: no file"


def test_a_password_of_the_file_is_never_printed(anywhere, tmp_path, monkeypatch):
    monkeypatch.setattr("rmq.cli_framework.options.RETRY_FOR_S", 0.0)
    file = tmp_path / "rmq.toml"
    for url in ("redis://u:sesame7@127.0.0.1:1/0", "redis://:sesame7@[bad/0"):
        file.write_text(f'url = "{url}"')
        for words in (("ping",), ("stats", "--json"), ("config", "show"), ("top", "--once")):
            done = anywhere(*words)
            assert "sesame7@" not in done.stdout + done.stderr
    file.write_text('token = "sesame7"\nurl = "redis://u:sesame7@h')
    assert "sesame7" not in anywhere("ping").output


def test_a_file_that_is_wrong_is_told_once_and_not_where_it_is_not_needed(anywhere, tmp_path):
    (tmp_path / "rmq.toml").write_text('ulr = "redis://x"')

    done = anywhere("ping")

    assert (done.exit_code, done.stderr.count("ulr: unknown setting")) == (2, 1)
    for words in (("--help",), ("--version",), ("topic", "ls", "--help")):
        assert anywhere(*words).exit_code == 0
    flags = ("--url", "redis://127.0.0.1:1", "--prefix", "x")
    assert "ulr" not in anywhere("ping", *flags).output, "nothing of it is needed"


def test_the_reader_of_files_is_loaded_where_there_is_one(anywhere, tmp_path):
    code = (
        "import sys; from rmq.cli_framework.options import CommonOptions; "
        "CommonOptions().key_prefix; "
        "print('tomllib' in sys.modules, 'rmq.server' in sys.modules)"
    )

    def loaded() -> str:
        words = [sys.executable, "-c", code]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()

    assert loaded() == "False False"
    (tmp_path / "rmq.toml").write_text('prefix = "x"')
    assert loaded() == "True False"
