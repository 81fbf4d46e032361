from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

import rmq
from rmq.cli import COMMANDS, cli


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name)


ALL = sorted(commands(cli))


def test_the_commands_are_these():
    assert [" ".join(path) for path in ALL] == [
        "acl generate",
        "archive", "audit", "audit-trail",
        "batch cancel", "batch close", "batch ls", "batch show",
        "cancel", "claim", "completion", "config show",
        "dlq causes", "dlq edit", "dlq export", "dlq groups", "dlq import", "dlq ls", "dlq purge",
        "dlq redrive", "dlq restore", "dlq show",
        "doctor",
        "explain",
        "get",
        "groups ls", "groups pause", "groups purge", "groups release", "groups resume",
        "job ls", "job pause", "job resume", "job show", "job stop",
        "ledger create", "ledger purge", "ledger show", "offloaded sweep", "outbox create",
        "outbox ls", "outbox purge", "outbox resend", "outbox run", "outbox status", "outbox void",
        "peek", "pending drop", "pending ls", "pending send", "ping", "priority", "purge",
        "query ls", "query release", "replay", "reschedule", "result",
        "schedule delete", "schedule ls", "schedule pause", "schedule resume", "schedule run",
        "schedule show", "schedule work", "send", "server",
        "signal", "sink forget", "sink ls", "stats", "tail",
        "token create", "token ls", "token revoke",
        "top", "topic apply", "topic create", "topic delete", "topic export", "topic ls",
        "topic pause", "topic resize", "topic resume", "topic set", "topic show",
        "worker ls", "worker run", "worker show", "worker wanted",
    ]  # fmt: skip


def test_every_command_has_help_with_an_example_and_the_common_options(run):
    for path in ALL:
        shown = run(*path, "--help")

        assert shown.exit_code == 0, path
        assert "Examples:" in shown.stdout, path
        for option in ("--json", "--url", "--prefix", "--output", "--columns"):
            assert option in shown.stdout, path
        assert max(map(len, shown.stdout.splitlines())) <= 100, path


def test_the_list_of_commands_has_the_sentences_of_their_own_help():
    context = click.Context(cli)
    own = {name: cli.get_command(context, name).get_short_help_str(400) for name in COMMANDS}

    assert {name: place.summary for name, place in COMMANDS.items()} == own


def test_every_command_is_in_the_manual(request):
    manual = (request.config.rootpath / "docs" / "cli.md").read_text()

    assert [path for path in ALL if f"rmq {' '.join(path)}" not in manual] == []


def test_help_names_every_exit_code(run):
    shown = run("--help").stdout

    for code in ("0", "1", "2", "3", "4", "5", "6", "130", "141"):
        assert f"\n    {code} " in shown


def test_version(shell):
    assert shell.from_start("--version").stdout == f"rmq {rmq.__version__}\n"


def test_no_arguments_show_help_and_are_wrong_usage(shell):
    done = shell.from_start()

    assert (done.returncode, done.stdout) == (2, "")
    assert "Commands:" in done.stderr


@pytest.mark.parametrize("columns", [80, 100])
def test_no_line_of_help_is_cut_or_too_long(columns):
    groups = sorted({path[:-1] for path in ALL})
    assert len(groups) > 10

    for words in [*groups, *ALL]:
        done = CliRunner().invoke(cli, [*words, "--help"], terminal_width=columns)
        lines = done.stdout.splitlines()

        assert [line for line in lines if len(line) > columns] == [], words
        if words in groups:
            listed = lines[lines.index("Commands:") :]
            assert [line for line in listed if line.endswith("...")] == [], words
