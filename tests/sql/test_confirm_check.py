"""Work that was done before, by a claim or a stub: it is confirmed and not done again."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import rmq
from tests.sql.consuming import Consuming, scene

__all__ = ["scene"]  # a fixture


# --- found done before ---------------------------------------------------------------------------


def test_work_that_a_claim_says_was_done_is_confirmed_and_not_done_again(
    scene: Consuming,
) -> None:
    first, copy = scene.sent({"pay": 7}), scene.sent({"pay": 7})
    done: list[Any] = []
    scene.consume(
        lambda body, d: done.append(body),
        scene.confirms(), rmq.idempotent(rmq.Claims(), key=lambda body: body["pay"]),
        concurrency=1,
    )  # fmt: skip

    scene.work(lambda: scene.status(first) == scene.status(copy) == "confirmed")

    assert done == [{"pay": 7}]
    assert scene.logged() == []


def test_work_that_a_guard_below_finds_done_is_confirmed(scene: Consuming) -> None:
    id = scene.sent()
    done: list[Any] = []

    def check(one: Any) -> bool:
        return False

    scene.consume(
        lambda body, d: done.append(body),
        scene.confirms(), rmq.idempotent(rmq.Claims(), check=check),
    )  # fmt: skip

    scene.work(lambda: scene.status(id) == "confirmed")

    assert done == []


def test_after_a_restore_of_the_database_the_runbook_lets_work_be_done_again(
    scene: Consuming,
) -> None:
    """Without it, claims in Redis say that the work is done, and it is confirmed."""
    pages = Path(__file__).parents[2] / "docs" / "runbook.md"
    found = re.search(r"--scan --pattern '([^']*)'", pages.read_text())
    assert found is not None
    pattern = found[1].replace("orders", scene.name)
    id, done = scene.sent(), []
    scene.consume(
        lambda body, d: done.append(d.attempt), scene.confirms(), rmq.idempotent(rmq.Claims())
    )

    def restored_and_worked() -> int:
        scene.change(id, status="unconfirmed", sends=0)
        assert scene.relay.run_once() == 1
        scene.work(lambda: scene.status(id) == "confirmed")
        return len(done)

    scene.work(lambda: scene.status(id) == "confirmed")
    assert restored_and_worked() == 1
    with scene.server.raw() as raw:
        assert raw.unlink(*raw.scan_iter(match=pattern)) == 1
    assert restored_and_worked() == 2


# --- unconfirmed: is the work still to be done? ---------------------------------------------------


@pytest.mark.parametrize(
    ("status", "runs"),
    [("unconfirmed", 1), ("exhausted", 1), ("confirmed", 0), ("void", 0)],
)
def test_check_runs_the_handler_only_while_its_stub_is_not_settled(
    scene: Consuming, status: str, runs: int
) -> None:
    id = scene.sent()
    scene.change(id, status=status, notified=1)
    done: list[Any] = []
    check = scene.outbox.unconfirmed(scene.theirs)
    scene.consume(
        lambda body, d: done.append(body),
        scene.confirms(), rmq.idempotent(rmq.Claims(), check=check),
    )  # fmt: skip

    scene.work(lambda: scene.place(id) is None)

    assert len(done) == runs


def test_check_runs_a_message_that_has_no_stub(scene: Consuming) -> None:
    done: list[Any] = []
    check = scene.outbox.unconfirmed(scene.theirs)
    scene.consume(lambda body, d: done.append(body), rmq.idempotent(rmq.Claims(), check=check))
    scene.topic.send("direct")

    scene.work(lambda: done)

    assert done == ["direct"]


@pytest.mark.parametrize(("checked", "runs"), [(True, 1), (False, 2)], ids=["checked", "control"])
def test_claim_that_was_lost_does_not_let_work_be_done_again_that_its_stub_says_was_done(
    scene: Consuming, checked: bool, runs: int
) -> None:
    id = scene.sent()
    done: list[Any] = []
    check = scene.outbox.unconfirmed(scene.theirs) if checked else None
    scene.consume(
        lambda body, d: done.append(body),
        scene.confirms(), rmq.idempotent(rmq.Claims(), check=check),
    )  # fmt: skip
    scene.work(lambda: scene.status(id) == "confirmed")
    with scene.server.raw() as raw:
        raw.delete(*raw.keys(f"rmq:{{{scene.name}_*}}:claim*"))
    scene.topic.send("x", id=scene.message(id))  # the same message once more

    scene.work(lambda: scene.place(id) is None)

    assert done == ["x"] * runs
