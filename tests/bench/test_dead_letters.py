"""`python -m bench.dead_letters`: a small run, and what it refuses to count."""

from __future__ import annotations

import sys

import pytest

import rmq
from bench import dead_letters, machine


@pytest.mark.slow
def test_a_small_run_prints_every_figure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dead_letters, "RATE", 50)
    small = ["--letters", "600", "--rows", "300", "--sent", "400", "--rounds", "1", "--slots", "2"]
    monkeypatch.setattr(sys, "argv", ["dead_letters", *small])

    dead_letters.main()

    shown = capsys.readouterr().out
    for figure in (
        "first row of rmq dlq ls", "a table of 300 rows", "the same / --json",
        "completing a topic / rmq --help", "longest call, of SLOWLOG", "Redis waited for a CPU",
        "redrive of 400 of 800", "at 50/s: rate / 50",
    ):  # fmt: skip
        assert figure in shown
    assert "600 letters, 2 slots; load " in shown


def test_letters_have_their_causes_by_turns_and_a_lost_one_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with machine.server() as server, rmq.Client(server.url) as client:
        dead_letters.bury(client, "some", 501, 2)

        assert client.admin.stats("some")["dead"] == 501
        groups = client.admin.dead_letter_groups("some").groups
        assert [group.count for group in groups] == [251, 250]
        monkeypatch.setattr(dead_letters, "CAUSES", ("a", "b", "c"))
        monkeypatch.setattr(dead_letters, "bury", lambda *args: client.topic("few").send(1))
        with pytest.raises(RuntimeError, match="sent 0 of 10 back"):
            dead_letters._sent_per_s(client, "few", 10, 1, None)


@pytest.mark.slow
def test_a_command_that_prints_nothing_has_no_first_row(tmp_path: object) -> None:
    with machine.server() as server, rmq.Client(server.url) as client:
        client.topic("empty").send(1)

        with pytest.raises(RuntimeError, match="printed no row"):
            dead_letters.Shell(server.url, str(tmp_path)).seconds(
                "dlq", "ls", "empty", first_row=True
            )
