from __future__ import annotations

from collections.abc import Callable

import pytest

from bench.soak.checker import MUST, check
from tests.bench.soak.histories import START_MS, Story, sound

LEASE = 3_000


def found(story: Story) -> dict[str, int]:
    report = check(story.events, least_sends=1)
    return {name: len(texts) for name, texts in report.findings.items() if texts}


# For each check a history that it must catch, and the nearest one that is sound.
CAUGHT: dict[str, Callable[[Story], object]] = {
    "lost": lambda s: s.send(1),
    "stuck": lambda s: s.send(1).deliver(1).handle(1),
    "unexpected": lambda s: s.deliver(1, digest="other").handle(1).settle(1),
    "copies": lambda s: s.whole(1).send(1, id="m2").deliver(1, id="m2").settle(2).handle(2),
    "returned": lambda s: s.whole(1).wait(LEASE).deliver(1, 2),
    "unexplained": lambda s: s.send(1).deliver(1).deliver(1, 2).handle(1).settle(1, 2),
    "double acks": lambda s: (
        s.send(1).deliver(1).wait(LEASE).deliver(1, 2).handle(1).settle(1, 2).settle(1, 1)
    ),
    "overlaps": lambda s: s.send(1).deliver(1).deliver(1, 2, pid=3).handle(1).settle(1, 2),
    "early": lambda s: s.send(1, due=START_MS + s.at + 500).deliver(1).handle(1).settle(1),
    "overrun": lambda s: s.send(1).deliver(1, 4).handle(1).settle(1, 4),
    "inversions": lambda s: (
        s.send(1, priority=50).send(2, priority=90)
        .deliver(1).deliver(2).handle(1).handle(2).settle(1).settle(2)
    ),
    "gaps": lambda s: s.send(1).deliver(1, number=9).handle(1).settle(1),
    "not linearizable": lambda s: s.send(1).deliver(1).handle(1).settle(1, 9),
}  # fmt: skip
PASSED: dict[str, Callable[[Story], object]] = {
    "lost": lambda s: s.send(1, "unknown").send(2, "fail").send(3, ""),
    "stuck": lambda s: s.send(1).deliver(1).handle(1).settle(1, answer="unknown"),
    "unexpected": lambda s: s.send(1, "unknown").deliver(1).handle(1).settle(1),
    "copies": lambda s: s.send(1, "unknown").send(1).deliver(1).handle(1).settle(1),
    "returned": lambda s: (
        s.send(1).deliver(1).wait(LEASE).deliver(1, 2).handle(1).settle(1, 2)
    ),
    "unexplained": lambda s: (
        s.send(1).deliver(1).settle(1, op="nack").deliver(1, 2).handle(1).settle(1, 2)
    ),
    "double acks": lambda s: (
        s.send(1).deliver(1).wait(LEASE).deliver(1, 2).handle(1).settle(1, 2).settle(1, 1, "fail")
    ),
    "overlaps": lambda s: (
        s.send(1).deliver(1).wait(LEASE).deliver(1, 2, pid=3).handle(1).settle(1, 2)
    ),
    "early": lambda s: s.send(1, due=START_MS + s.at + 500).wait(500).deliver(1).handle(1)
    .settle(1),
    "overrun": lambda s: s.send(1).deliver(1, 3).handle(1).settle(1, 3),
    "inversions": lambda s: (
        s.send(2, priority=90).send(1, priority=50)
        .deliver(2).deliver(1).handle(1).handle(2).settle(1).settle(2)
    ),
    "gaps": lambda s: s.send(1).event("ok", "dead", id="m1", reason="failed", attempt=3),
    "not linearizable": lambda s: s.send(1).deliver(1).handle(1).settle(1).settle(1),
}  # fmt: skip


def test_each_check_has_a_history_that_it_catches_and_one_that_it_passes():
    assert set(CAUGHT) == set(PASSED) == set(MUST)


@pytest.mark.parametrize("name", MUST)
def test_a_check_catches(name):
    story = sound()
    CAUGHT[name](story)

    assert name in found(story.end())
    assert check(story.events, least_sends=1).state == "fail"


@pytest.mark.parametrize("name", MUST)
def test_a_check_passes(name):
    story = sound()
    PASSED[name](story)

    report = check(story.end().events, least_sends=1)

    assert found(story) == {}
    assert (report.state, report.doubts) == ("pass", [])


def test_what_was_acked_and_never_handled_is_lost():
    story = sound()
    story.send(1).deliver(1).settle(1)

    assert found(story.end()) == {"lost": 1}


def test_a_history_without_work_needs_no_handle():
    story = Story().event("ok", "start")
    story.send(1).deliver(1).settle(1).fault()

    assert found(story.end()) == {}


def test_a_dead_letter_with_retries_left_is_an_overrun_unless_it_has_another_reason():
    for reason, wrong in (("failed", {"overrun": 1}), ("rejected", {})):
        story = sound()
        story.send(1).event("ok", "dead", id="m1", reason=reason, attempt=2)

        assert found(story.end()) == wrong


def test_an_inversion_needs_to_be_certain():
    together = sound()
    together.send(1, priority=50).send(2, priority=90)
    since = together.at * 1_000_000 + 1
    together.deliver(1, since=since).deliver(2, since=since)  # two calls at the same time
    together.handle(1).handle(2).settle(1).settle(2)
    other_slot = sound()
    other_slot.send(1, priority=50).send(2, priority=90).deliver(1).deliver(2, slot=1)
    other_slot.handle(1).handle(2).settle(1).settle(2)

    assert found(together.end()) == {}
    assert found(other_slot.end()) == {}


@pytest.mark.parametrize(
    ("make", "doubt"),
    [
        (lambda: Story().whole(1).end(), "no fault fired"),
        (lambda: sound(1).end("fail"), "the drain is not complete"),
        (lambda: sound(1), "the drain is not complete"),
        (lambda: sound(1).end(control=""), "no negative control was run"),
        (lambda: sound(1).end(control="fail"), "the control settle-first was not caught"),
    ],
)
def test_a_history_that_proves_nothing_is_unknown(make, doubt):
    report = check(make().events, least_sends=1)

    assert report.state == "unknown"
    assert doubt in report.doubts


def test_too_few_sends_prove_nothing():
    report = check(sound(4).end().events)

    assert report.state == "unknown"
    assert report.doubts == ["4 sends were answered, fewer than 100"]


def test_a_history_that_is_wrong_fails_even_if_it_proves_nothing():
    assert check(Story().deliver(1).events).state == "fail"


def test_before_the_drain_nothing_is_lost():
    story = sound()

    assert found(story.send(1).end("fail")) == {}


def test_deliveries_beyond_the_first_are_counted_by_cause():
    story = sound()
    story.send(1).deliver(1).settle(1, op="nack").deliver(1, 2).wait(LEASE).deliver(1, 3)
    story.handle(1).settle(1, 3)

    report = check(story.end().events, least_sends=1)

    assert report.causes == {"nack": 1, "lease expired": 1}
    assert report.counts["redelivered"] == 2
    assert report.state == "pass"


def test_timed_messages_have_a_lateness():
    story = sound()
    story.send(1, due=START_MS + story.at + 500).wait(700).deliver(1).handle(1).settle(1)

    late = check(story.end().events, least_sends=1).late_ms

    assert late["max"] == late["p50"] == 500 + 700 - 500 - 470
