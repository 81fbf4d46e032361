"""The real scripts do what the model says: random walks through both, compared at every step."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.conftest import Clock
from tests.lua.crediting import break_script
from tests.model.protocol import SECOND, Rules
from tests.model.real_slot import RealSlot
from tests.model.world import Bounds, State, first_state, steps
from tests.servers import Server

STEPS = 40
KINDS = frozenset({"reply", "copy", "death"})
RULES = Rules()


def ended(bounds: Bounds, state: State, leases: list[str]) -> State:
    """Return the state after the ends of these leases."""
    for what in leases:
        state = next(after for step, after in steps(RULES, bounds, state) if step.what == what)
    return state


def walk(slot: RealSlot, seed: int, done: Counter[str]) -> None:
    """Do random steps in the slot; each must lead where the model says that it may lead."""
    choose = random.Random(seed)
    bounds = Bounds(faults=3, releases=2, sleeps=4, hand_overs=1 + seed % 2, kinds=KINDS, cancels=2)
    state: State = first_state(bounds)
    told = [f"seed {seed}"]
    for _ in range(STEPS):
        ends = slot.ends()
        first = min(ends, key=lambda what: ends[what]) if ends else ""
        # What one script hands over, for one credit, has leases that end together.
        others = [what for what in ends if what != first and ends[what] == ends[first]]
        possible = [
            (step, ended(bounds, after, others) if step.what == first else after)
            for step, after in steps(RULES, bounds, state)
            if step.what == first or "lease" not in step.what
        ]
        if not possible:
            return
        step, _ = choose.choice(possible)
        told.append(step.told())
        if step.what == first:
            slot.end_first_lease()
        reply = slot.do(step)
        found = slot.looks()
        allowed = [(s, after) for s, after in possible if s[:4] == step[:4]]
        matching = [(s, after) for s, after in allowed if slot.seen(after) == found]
        wanted = " or ".join(str(slot.seen(after)) for _, after in allowed)
        assert matching, "\n".join((*told, f"the slot has {found}", f"the model: {wanted}"))
        if step.what == "answered":
            replies = [s.reply for s, _ in matching]
            assert reply in replies, "\n".join((*told, f"{reply} instead of {replies}"))
            matching = [(s, after) for s, after in matching if s.reply == reply]
        moved = matching[0][1].server.delivered > state.server.delivered
        done["steps"] += 1
        done["hand-overs"] += moved and step.call is not None and step.call.verb != "take"
        credit = state.server.credit
        done["second hand-overs"] += bool(moved and credit and credit[1][0][0] == SECOND)
        done["faults"] += step.is_fault
        done["requests"] += max(state.server.requests) < max(matching[0][1].server.requests)
        done["cancelled in flight"] += bool(
            step.call and step.call.verb != "cancel"
            and matching[0][1].server.cancelled != state.server.cancelled
        )  # fmt: skip
        state = matching[0][1]
        slot.note(state.server)


@pytest.mark.parametrize("walks", [60, pytest.param(300, marks=pytest.mark.slow)])
def test_the_real_scripts_go_where_the_model_goes(
    server: Server, name: str, clock: Clock, walks: int
) -> None:
    done: Counter[str] = Counter()
    client = server.raw(protocol=2)

    for seed in range(walks):
        slot = RealSlot(client, f"{name}-{seed}", clock)
        walk(slot, seed, done)
        slot.sleeper.close()

    client.close()
    print(f"\nFIG model, real scripts: {walks} walks, {dict(done)}")
    assert min(done["hand-overs"], done["faults"]) > walks // 10
    assert done["second hand-overs"] > 0
    assert min(done["requests"], done["cancelled in flight"]) > walks // 10
    assert done["steps"] > 10 * walks


@pytest.mark.parametrize(
    ("verb", "before", "after"),
    [
        ("ack", "tonumber(score) == tonumber(receipt)", "true"),
        ("release", "math.floor(receipts[m] % 1000) + 1", "math.floor(receipts[m] % 1000)"),
        ("rollback_expired_leases", "if left == 0 then", "if left < 0 then"),
        ("send", "if credit.calls == '' then", "if true then"),
        ("nack", "validity = end_cancelled(validity, 5, valid, now)", ""),
        ("ack", "forget_requests(valid_ids, cancelling)", ""),
        ("cancel", "tonumber(receipt) % 1000 ~= delivery", "false"),
    ],
)
def test_control_a_broken_script_leaves_the_model(
    server: Server, name: str, clock: Clock, monkeypatch: pytest.MonkeyPatch,
    verb: str, before: str, after: str,
) -> None:  # fmt: skip
    break_script(monkeypatch, verb, before, after)
    client = server.raw(protocol=2)

    with pytest.raises(AssertionError):  # noqa: PT012
        for seed in range(300):
            walk(RealSlot(client, f"{name}-{seed}", clock), seed, Counter())

    client.close()
