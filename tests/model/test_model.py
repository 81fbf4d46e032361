"""Every state of the protocol in small, and of its broken variants."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator

import pytest

from tests.model.mutants import MUTANTS
from tests.model.promises import broken_promise, is_end
from tests.model.protocol import Rules
from tests.model.search import Found, search
from tests.model.world import KINDS, Bounds

SEARCHES = {
    "one message, any fault": Bounds(messages=1, kinds=frozenset(KINDS)),
    "two messages, a lost reply or a death": Bounds(
        releases=0, kinds=frozenset({"reply", "death"})
    ),
    "two messages, a failover": Bounds(releases=0, sleeps=0, kinds=frozenset({"failover"})),
    "two messages, a credit for two, a lost reply or a death": Bounds(
        hand_overs=2, releases=0, kinds=frozenset({"reply", "death"}), has_plain=False
    ),
    "one message, two of a lost reply, a death and a failover": Bounds(
        messages=1, faults=2, releases=0, sleeps=0, kinds=frozenset({"reply", "death", "failover"})
    ),
    "one message, two cancels, any fault": Bounds(
        messages=1, sleeps=0, cancels=2, kinds=frozenset(KINDS)
    ),
    "two messages, a cancel, a lost reply or a death": Bounds(
        releases=0, sleeps=0, cancels=1, kinds=frozenset({"reply", "death"})
    ),
    "one message with a result, a cancel, any fault": Bounds(
        messages=1, sleeps=0, cancels=1, keeps=1, kinds=frozenset(KINDS)
    ),
    "one message with a result, an expiry, a removal, any fault": Bounds(
        messages=1, sleeps=0, releases=0, keeps=1, expire=1, removals=1, kinds=frozenset(KINDS)
    ),
    "two messages, one with a result, a lost reply": Bounds(
        releases=0, sleeps=0, keeps=1, kinds=frozenset({"reply"})
    ),
}
SMALL = {  # together they meet everything, in a tenth of the time
    "one message, any fault, no release": Bounds(messages=1, releases=0, kinds=frozenset(KINDS)),
    "one message, any fault, no plain consumer": Bounds(
        messages=1, has_plain=False, kinds=frozenset(KINDS)
    ),
    "one message, a cancel, a lost reply or a late copy": Bounds(
        messages=1, sleeps=0, releases=0, cancels=1, kinds=frozenset({"reply", "copy"})
    ),
    "one message with a result, an expiry, a removal, a lost reply": Bounds(
        messages=1, sleeps=0, releases=0, keeps=1, expire=1, removals=1, kinds=frozenset({"reply"})
    ),
}
STATES_MIN = 100_000  # of all searches: a bound that became smaller by accident is noticed

# What a search must have met: else it proves nothing.
MET = (
    "send: the reply is lost", "take: the reply is lost", "ack: the reply is lost",
    "nack: the reply is lost", "release: the reply is lost", "send: lost on its way",
    "send: a late copy arrives", "take: a late copy arrives", "ack: a late copy arrives",
    "rollback: done", "lease_rollback: done", "the shared lease ends", "withdraw: answered",
    "the worker dies", "the sleeper dies", "the sleeper's connection dies", "failover",
    "failover to a replica that is behind", "the sleeper subscribes anew",
    "cancel: answered", "cancel: the reply is lost", "cancel: a late copy arrives",
    "ack_then: the reply is lost", "purge: the reply is lost", "redrive: the reply is lost",
    "purge_dead: answered", "drop_expired: done", "the keeping of message 0 ends",
)  # fmt: skip


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """States have no cycles; the garbage collector would look at all of them again and again."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_no_state_of_the_protocol_breaks_a_promise() -> None:
    total, met = 0, set()
    for name, bounds in SEARCHES.items():
        found = searched(name, bounds)
        total += found.states
        met |= set(found.seen)
    assert total > STATES_MIN
    assert set(MET) <= met


def test_no_state_of_one_message_and_one_fault_breaks_a_promise() -> None:
    met = set()
    for name, bounds in SMALL.items():
        met |= set(searched(name, bounds).seen)
    assert set(MET) <= met


def searched(name: str, bounds: Bounds) -> Found:
    """Visit every state within these bounds; none breaks a promise."""
    began = time.process_time()
    found = search(Rules(), bounds, broken_promise, is_end)
    spent = time.process_time() - began
    print(f"\nFIG model, {name}: {found.figures()}, {spent:.1f} s of CPU")
    assert not found.broken, "\n  ".join((name, found.broken, *found.trace))
    return found


@pytest.mark.timeout(600)
def test_the_search_catches_every_broken_variant() -> None:
    caught = 0
    for name, mutant in MUTANTS.items():
        found = search(
            Rules(**{mutant.rule: False}), mutant.bounds, broken_promise, is_end, most=200_000
        )
        caught += found.broken == mutant.breaks
        trace = "\n  ".join(found.trace)
        print(f"\n{name}, so this breaks: {found.broken or 'nothing'}\n  {trace}")
        assert found.broken == mutant.breaks, name
    print(f"\nFIG model, mutants: {caught} of {len(MUTANTS)} caught")
