"""The same fault on every rung: how often the transfer is applied, and which rungs have which gap.

Each test plays one moment on all rungs side by side. `+check` asks the database before the work,
`+condition` writes only if the order is still open, in the transaction of the work. Where a
transfer is applied twice the rung promises no better (docs/guarantees.md), and the test shows it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.databases import Postgres, fresh
from tests.faults.bank_scene import Bank, fault, opened
from tests.servers import Server

WAYS = (
    "claims",
    "claims+check",
    "claims+check+condition",
    "ledger",
    "ledger+check",
    "ledger+condition",
    "transaction",
)
RUNGS = ("claims", "claims+check", "ledger", "transaction")  # 2 to 5, with nothing added
ONCE = dict.fromkeys(WAYS, 1)
ALL = len(WAYS)

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def bank(server: Server, postgres: Postgres, name: str, tmp_path: Path) -> Iterator[Bank]:
    with fresh(postgres) as database, opened(server, database, name, tmp_path, WAYS) as made:
        yield made


def report(bank: Bank, moment: str) -> dict[str, int]:
    """Return how often each rung applied its transfer; check that all else is right."""
    times, books = bank.times(), bank.books(Counter(here=1))
    print(f"FIG {moment}: {times}")
    assert books.never == []
    assert sorted(books.repeated) == sorted(way for way, count in times.items() if count > 1)
    assert books.state == ("invalid" if books.repeated else "valid"), books
    rest = (books.lost, books.unexpected, books.astray, books.wrong, books.left, books.dead)
    assert not any(rest), books
    return times


def test_a_kill_before_the_commit_or_after_the_mark_is_applied_once_on_every_rung(
    server: Server,
    postgres: Postgres,
    name: str,
    tmp_path: Path,
) -> None:
    """Side by side, for each takes some leases."""
    with ExitStack() as stack:
        banks = {}
        for step in ("taken", "claimed", "within", "finished", "acked"):
            database = stack.enter_context(fresh(postgres))
            made = opened(server, database, f"{name}-{step}", tmp_path / step, RUNGS)
            banks[step] = stack.enter_context(made)
        for step, one in banks.items():
            one.send()
            one.teller([fault(step, after=len(RUNGS))], together=True)
        for one in banks.values():
            one.tellers[0].dies()
            one.teller()

        for step, one in banks.items():
            one.drained()
            assert report(one, f"killed, {step}") == dict.fromkeys(RUNGS, 1)


def test_a_kill_between_commit_and_mark_repeats_what_neither_checks_nor_has_a_condition(
    bank: Bank,
) -> None:
    bank.send()
    bank.teller([fault("committed", after=ALL)], together=True).dies()
    bank.teller()
    bank.drained()

    assert report(bank, "killed between commit and mark") == {
        **ONCE, "claims": 2, "ledger": 2,
    }  # fmt: skip


def test_a_commit_whose_answer_is_lost_repeats_what_neither_checks_nor_has_a_condition(
    bank: Bank,
) -> None:
    bank.send()
    # All at once, each at its first commit: another rung's second is not its own.
    bank.teller([fault("committed", "raise", ALL)], together=True)
    bank.drained()

    assert report(bank, "the answer to the commit was lost") == {
        **ONCE, "claims": 2, "ledger": 2,
    }  # fmt: skip


def test_a_stop_before_the_check_repeats_what_neither_checks_nor_has_a_condition(
    bank: Bank,
) -> None:
    bank.send()
    late = bank.teller([fault("claimed", "stop", ALL)], together=True)
    late.stops()
    bank.teller()
    bank.applies(set(WAYS) - {"transaction"})  # that row is the late one's transaction's
    late.go_on()
    bank.drained()

    assert report(bank, "stopped after the claim") == {**ONCE, "claims": 2, "ledger": 2}


def test_a_stop_in_the_midst_of_the_work_repeats_what_has_no_condition_in_its_transaction(
    bank: Bank,
) -> None:
    bank.send()
    late = bank.teller([fault("within", "stop", ALL)], together=True)
    late.stops()
    quick = bank.teller()
    bank.begins(set(WAYS) - {"transaction"}, of=quick)
    late.go_on()
    bank.drained()

    assert report(bank, "stopped in the midst of the work") == {
        **ONCE, "claims": 2, "claims+check": 2, "ledger": 2, "ledger+check": 2,
    }  # fmt: skip


def test_a_claim_deleted_after_the_work_repeats_on_rung_2_alone(bank: Bank) -> None:
    bank.send()
    bank.teller()
    bank.drained()
    assert bank.forget_claims() == sum(way.startswith("claims") for way in WAYS)
    bank.send(bank.ordered)
    bank.teller()
    bank.drained()

    assert report(bank, "claim deleted after the work") == {**ONCE, "claims": 2}


def test_a_claim_deleted_during_the_work_repeats_what_has_no_condition_in_its_transaction(
    bank: Bank,
) -> None:
    gate = bank.folder / "gate"
    bank.send()
    bank.teller([fault("within", "wait", ALL, gate=str(gate))], together=True, concurrency=2)
    bank.begins(set(WAYS))
    assert bank.forget_claims() == sum(way.startswith("claims") for way in WAYS)
    bank.send(bank.ordered)
    bank.begins({way for way in WAYS if way.startswith("claims")}, times=2)
    gate.touch()
    bank.drained()

    assert report(bank, "claim deleted during the work") == {
        **ONCE, "claims": 2, "claims+check": 2,
    }  # fmt: skip


def test_a_redis_that_has_lost_everything_repeats_on_rung_2_alone(
    postgres: Postgres, forgetful: Server, name: str, tmp_path: Path
) -> None:
    with fresh(postgres) as database:
        with opened(forgetful, database, name, tmp_path / "before", WAYS) as before:
            before.send()
            before.teller()
            before.drained()
            sent = before.ordered
        with forgetful.raw() as redis:
            redis.flushall()
        with opened(forgetful, database, name, tmp_path / "after", WAYS) as after:
            after.ordered += sent
            after.send(sent)
            after.teller()
            after.drained()

            assert report(after, "Redis flushed") == {**ONCE, "claims": 2}
