"""The real scripts do what the model says: random walks through both, compared at every step."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from tests.conftest import Clock
from tests.lua.crediting import break_script
from tests.model.protocol import KEEPS_RESULTS, MESSAGES, SECOND, Rules
from tests.model.real_slot import RealSlot
from tests.model.world import Bounds, State, Step, first_state, steps
from tests.servers import Server

STEPS = 40
KINDS = frozenset({"reply", "copy", "death"})
RULES = Rules()
TIME_STEPS = (" ends", " passes")


def ended(bounds: Bounds, state: State, leases: list[str]) -> State:
    """Return the state after the ends of these leases."""
    for what in leases:
        state = next(after for step, after in steps(RULES, bounds, state) if step.what == what)
    return state


def plain_bounds(seed: int) -> Bounds:
    return Bounds(faults=3, releases=2, sleeps=4, hand_overs=1 + seed % 2, kinds=KINDS, cancels=2)


def bounds_of(seed: int) -> Bounds:
    """Every second walk has results: half of these with deaths, the others with an expiry."""
    bounds = plain_bounds(seed)
    if seed // 2 % 4 == 1:
        return replace(bounds, keeps=1, removals=3, releases=0, cancels=0, sleeps=1)
    if seed // 2 % 4 == 3:
        return replace(bounds, keeps=1, removals=1, expire=1, sleeps=0)
    return bounds


def weight(bounds: Bounds, step: Step) -> int:
    """How often a step is chosen: in walks with deaths, the steps around a death more often."""
    if bounds.removals < 2 or step.call is None:
        return 1
    is_done = step.reply == "done" and step.call.verb in ("redrive", "purge_dead")
    return 8 if is_done or step.call.verb in ("nack", "rollback") else 1


def walk(slot: RealSlot, seed: int, done: Counter[str]) -> None:
    """Do random steps in the slot; each must lead where the model says that it may lead."""
    choose = random.Random(seed)
    bounds, state = slot.bounds, first_state(slot.bounds)
    told = [f"seed {seed}"]
    for _ in range(STEPS):
        ends = slot.ends()
        first = min(ends, key=lambda what: ends[what]) if ends else ""
        # What one script hands over, for one credit, has leases that end together.
        others = [what for what in ends if what != first]
        possible = [
            (step, ended(bounds, after, others) if step.what == first else after)
            for step, after in steps(RULES, bounds, state)
            if step.what == first or not step.what.endswith(TIME_STEPS)
        ]
        if not possible:
            return
        often = [each for each in possible for _ in range(weight(bounds, each[0]))]
        step, _ = choose.choice(often)
        told.append(step.told())
        if step.what == first:
            slot.move_to(max(ends.values()))
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
        after = matching[0][1].server
        for m in MESSAGES:
            letter = after.results[m] or "removed"
            done[f"result {letter}"] += after.results[m] != state.server.results[m]
        done["acks refused"] += step.reply == KEEPS_RESULTS
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
        slot = RealSlot(client, f"{name}-{seed}", clock, bounds_of(seed))
        walk(slot, seed, done)
        slot.sleeper.close()

    client.close()
    print(f"\nFIG model, real scripts: {walks} walks, {dict(done)}")
    assert min(done["hand-overs"], done["faults"]) > walks // 10
    assert done["second hand-overs"] > 0
    assert min(done["requests"], done["cancelled in flight"]) > walks // 10
    assert done["steps"] > 10 * walks
    assert min(done["acks refused"], *(done[f"result {letter}"] for letter in "sdecp")) > 0


# Changes of scripts: the verb, the text before and after, and the seed of a walk that notices it.
RESULTS = [  # these break results
    ("ack_then", "note_outcomes(valid_ids, now, nil, ended)", "", 2),
    ("ack", "cancelling or outcomes then", "cancelling then", 6),
    ("rollback_expired_leases", "note_outcomes(ids, now, 'd')", "", 27),
    ("rollback_expired_leases", "note_outcomes(ids, now, 'c')", "", 22),
    ("cancel", "note_outcomes(ids, now, 'c')", "", 7),
    ("purge", "note_outcomes(ids, now, 'p')", "", 58),
    ("purge", "if is_store then\nnote_outcomes", "if true then\nnote_outcomes", 51),
    ("prepare", "note_outcomes(ids, now, 'e')", "", 47),
    ("drop_expired", "note_outcomes(ids, now, 'e')", "", 54),
    ("redrive", "redis.call('HEXISTS', slot, 'outcomes') == 1", "false", 59),
    ("cancel", "keeping, '-inf', now", "keeping, '-inf', now + 1e6", 7),
]


CHANGES = [
    ("ack", "tonumber(score) == tonumber(receipt)", "true", 3),
    ("release", "math.floor(receipts[m] % 1000) + 1", "math.floor(receipts[m] % 1000)", 0),
    ("rollback_expired_leases", "if deliveries_left == 0 then", "if deliveries_left < 0 then", 10),
    ("send", "if credit.calls == '' then", "if true then", 5),
    ("nack", "local cancelled = remove_cancelled_from(valid, now)", "local cancelled = {}", 58),
    ("ack", "forget_requests(valid_ids, cancelling)", "", 3),
    ("cancel", "tonumber(receipt) % 1000 ~= delivery", "false", 91),
    *RESULTS,
]


@pytest.mark.parametrize(
    ("verb", "before", "after", "likely_seed"),
    [
        pytest.param(*change, marks=[pytest.mark.slow] if change in RESULTS[1:] else [])
        for change in CHANGES
    ],
)
def test_control_a_broken_script_leaves_the_model(
    server: Server, name: str, clock: Clock, monkeypatch: pytest.MonkeyPatch,
    verb: str, before: str, after: str, likely_seed: int,
) -> None:  # fmt: skip
    break_script(monkeypatch, verb, before, after)
    client = server.raw(protocol=2)
    is_of_results = (verb, before, after, likely_seed) in RESULTS

    with pytest.raises(AssertionError):  # noqa: PT012
        for number, seed in enumerate((likely_seed, *range(300))):
            bounds = bounds_of(seed) if is_of_results else plain_bounds(seed)
            walk(RealSlot(client, f"{name}-{number}", clock, bounds), seed, Counter())

    client.close()
