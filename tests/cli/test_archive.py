"""rmq archive: the history as Parquet files."""

from __future__ import annotations

import json

from tests.conftest import Clock
from tests.integration.test_archive import acked, values


def test_a_repeated_command_writes_what_is_new(run, topic, client, clock: Clock, tmp_path):
    client.admin.topic_set(topic.name, history="keep=7d,max_bytes=8MiB")
    acked(topic, range(5))
    clock.advance(7200)

    first = run("archive", topic.name, "--to", tmp_path, "--json")
    acked(topic, range(5, 8))
    clock.advance(7200)
    second = run("archive", topic.name, "--to", tmp_path)
    third = run("archive", topic.name, "--to", tmp_path, "--json")

    assert json.loads(first.stdout) == {
        "topic": topic.name, "to": str(tmp_path), "files": 1, "messages": 5,
        "upto": "2026-09-21T16:00:00.000Z", "lost_to": None,
    }  # fmt: skip
    assert second.stdout == (
        f"{topic.name}: 3 messages in 1 file; archived up to 2026-09-21T18:00:00.000Z\n"
    )
    assert json.loads(third.stdout)["messages"] == 0
    assert {first.exit_code, second.exit_code, third.exit_code} == {0}
    assert values(tmp_path) == list(range(8))


def test_lost_messages_need_an_option_and_make_a_partial_exit(
    run, topic, client, clock: Clock, tmp_path
):
    client.admin.topic_set(topic.name, history="keep=7d,max_bytes=1MiB")
    acked(topic, [1])
    run("archive", topic.name, "--to", tmp_path)
    acked(topic, ["x" * 200_000] * 8)
    clock.advance(7200)

    failed = run("archive", topic.name, "--to", tmp_path)
    skipped = run("archive", topic.name, "--to", tmp_path, "--skip-lost")

    assert failed.exit_code == 1
    assert "continue with --skip-lost" in failed.stderr
    assert skipped.exit_code == 4
    assert "were lost before they were archived" in skipped.stderr


def test_a_folder_that_cannot_be_written_and_a_wrong_time(run, topic, client, tmp_path):
    client.admin.topic_set(topic.name, history="keep=7d,max_bytes=1MiB")
    (tmp_path / "file").write_text("")

    refused = run("archive", topic.name, "--to", tmp_path / "file" / "x")
    wrong = run("archive", topic.name, "--to", tmp_path, "--every", "7h")

    assert (refused.exit_code, wrong.exit_code) == (1, 2)
    assert "run the command again to continue" in refused.stderr
    assert "part of a day" in wrong.stderr
