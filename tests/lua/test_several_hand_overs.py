"""Credits that are good for several hand-overs, as workers leave them."""

from __future__ import annotations

import pytest

from tests.lua.crediting import WAYS, break_script, credits_of, send_way

LEASE_MS = 30_000


def entries_of(box):
    """The credits of a slot, each as its words."""
    field = box.redis.hget(box.keys.slot, "credits").decode()
    return [entry.split() for entry in field.split(";")[:-1]]


@pytest.mark.parametrize("way", WAYS)
def test_a_credit_for_several_hand_overs_goes_behind_the_others_each_time(box, sleepers, way):
    sleepers[0].offer(limit=9, hand_overs=3)
    sleepers[1].offer(limit=3)
    channel, number, *terms, _, _, s2, n2, s3, n3 = entries_of(box)[0]

    sent = send_way(box, way)

    assert credits_of(box) == ["b", "a"]
    assert number == "1"
    assert entries_of(box)[1] == [channel, "2", *terms, s2, n2, s3, n3]
    assert [lease.id for lease in sleepers[0].taken()] == sent

    sent = [send_way(box, way) for _ in range(3)]

    assert credits_of(box) == []
    handed = sleepers[0].heard()  # the probes are before that
    assert [one.number for one in handed] == [2, 3]
    assert [one.batch.ids for one in handed] == sent[1:]
    assert [lease.id for lease in sleepers[1].taken()] == sent[0]


@pytest.mark.parametrize("way", WAYS)
def test_each_hand_over_of_a_credit_is_the_answer_to_a_call_of_its_own(box, sleepers, way):
    check_that_each_hand_over_is_recovered(box, sleepers[0], way)


def check_that_each_hand_over_is_recovered(box, sleeper, way):
    sleeper.offer(limit=9, hand_overs=3)
    sent = [send_way(box, way) for _ in range(2)]
    first, second = (handed.batch for handed in sleeper.heard()[1:])
    waiting = box.order("store")

    again = [box.prepare(1, LEASE_MS, session) for session in sleeper.sessions[:2]]

    assert [batch.ids for batch in again] == sent
    for batch, handed in zip(again, (first, second), strict=True):
        assert box.leases(batch) == box.leases(handed)
    assert box.order("store") == waiting


@pytest.mark.parametrize("way", WAYS)
def test_control_a_credit_that_turns_its_calls_round_forgets_a_hand_over(
    box, sleepers, way, monkeypatch
):
    """Broken on purpose: the test of the calls must notice."""
    left = "credit.till, credit.limit, credit.lease, "
    turned = "(string.gsub(credit.calls, '^( %S+ %d+)( %S+ %d+)$', '%2%1'))"
    break_script(monkeypatch, "send", f"{left}credit.calls", left + turned)

    with pytest.raises(AssertionError):
        check_that_each_hand_over_is_recovered(box, sleepers[0], way)
