"""`rmq batch`: list, show, close and cancel batches."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import rmq


@pytest.fixture
def batch(client: rmq.Client, topic: rmq.Topic, name: str) -> rmq.Batch:
    """An open batch with three members, one of which has ended."""
    made = client.batch(name, then=(topic, rmq.Outgoing("report")), timeout=3600)
    made.open()
    made.send_many(topic, [rmq.Outgoing(n) for n in range(3)])
    with topic.consumer() as consumer:
        (delivery,) = consumer.receive(1)
        delivery.ack()
    return made


def test_ls_and_show_print_the_progress(run: Callable[..., Any], batch: rmq.Batch) -> None:
    listed = run("batch", "ls")
    (row,) = [line for line in listed.stdout.splitlines() if line.startswith(f"{batch.name} ")]
    shown = run("batch", "show", batch.name)
    fields = json.loads(run("batch", "show", batch.name, "--json").stdout)

    assert row.split()[1:5] == ["open", "1", "3", "0"]
    assert listed.stdout.splitlines()[0].split() == [
        "NAME", "STATE", "ENDED", "MEMBERS", "NOT", "ACKED", "OPENED", "TOPIC",
    ]  # fmt: skip
    assert (shown.exit_code, "succeeded" in shown.stdout, "open" in shown.stdout) == (0, True, True)
    assert (fields["members"], fields["open"], fields["succeeded"]) == (3, 2, 1)
    assert fields["timeout"] is not None
    assert fields in json.loads(run("batch", "ls", "--json").stdout)


def test_close_prints_the_state(run: Callable[..., Any], batch: rmq.Batch) -> None:
    assert run("batch", "close", batch.name).stdout == f"{batch.name}: closed\n"
    assert json.loads(run("batch", "close", batch.name, "--json").stdout) == {
        "batch": batch.name, "state": "closed",
    }  # fmt: skip


def test_cancel_asks_for_the_name(run: Callable[..., Any], batch: rmq.Batch) -> None:
    refused = run("batch", "cancel", batch.name)
    assert (refused.exit_code, "2 open members" in refused.stderr) == (6, True)
    assert batch.read().state == "open"

    done = run("batch", "cancel", batch.name, "--yes")

    assert (done.exit_code, done.stdout) == (0, f"{batch.name}: 2 members cancelled\n")
    assert (batch.read().state, batch.read().is_cancelled) == ("done", True)


def test_an_unknown_batch_has_the_exit_code_of_what_was_not_found(
    run: Callable[..., Any], name: str
) -> None:
    codes = [run("batch", verb, name).exit_code for verb in ("show", "close")]
    codes += [
        run("batch", "cancel", name, "--yes").exit_code,
        run("job", "show", f"{name}.1a2b3c4d").exit_code,
    ]

    assert len(set(codes)) == 1


def test_the_audit_trail_has_who_cancelled_it(
    run: Callable[..., Any], batch: rmq.Batch, client: rmq.Client
) -> None:
    run("batch", "cancel", batch.name, "--yes")

    line = next(each for each in client.admin.audit_trail(20) if "batch" in each.what)
    assert (line.what, line.subject) == ("batch_cancel", batch.name)


def test_a_topic_of_a_batch_is_deleted_by_force_alone(
    run: Callable[..., Any], client: rmq.Client, topic: rmq.Topic, name: str
) -> None:
    client.batch(name, then=(topic, rmq.Outgoing("report"))).open()

    refused = run("topic", "delete", topic.name, "--yes")
    looked = json.loads(run("topic", "delete", topic.name, "--dry-run", "--json").stdout)

    assert (refused.exit_code, "1 batches that are not done" in refused.stderr) == (6, True)
    assert looked["batches"] == 1
    assert run("topic", "delete", topic.name, "--yes", "--force").exit_code == 0
