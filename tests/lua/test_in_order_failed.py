"""Taking from a slot in order in which messages have failed, or were redriven, on a real server."""

from __future__ import annotations

from rmq.features.dead_letters import scripts


def take(box, limit=10):
    return box.take(limit, 30_000, ordered=True)


def test_redriven_ones_are_taken_together_until_they_fail_again(box):
    box.send(4)
    leases = take(box, 4)
    box.reject(*leases)
    ids = [lease.id for lease in leases]
    assert box.run(scripts.redrive(box.handle, box.keys, box.session(), ids)) == "1111"

    again = take(box)
    assert [lease.id for lease in again] == ids
    box.nack(again[2])
    box.release(*again[:2], again[3])

    assert [lease.id for lease in take(box)] == [ids[0], ids[1]]
    assert set(box.order("prepare")) == {ids[0], ids[1]}


def test_the_ones_before_a_failed_one_are_taken_without_it(box):
    box.send(3)
    leases = take(box, 3)
    box.nack(leases[1])
    box.release(leases[0], leases[2])

    before = take(box)
    assert [lease.id for lease in before] == [leases[0].id]
    box.ack(*before)
    alone = take(box)
    assert [lease.id for lease in alone] == [leases[1].id]
    box.ack(*alone)
    assert [lease.id for lease in take(box)] == [leases[2].id]
