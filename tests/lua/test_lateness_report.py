"""lateness_report.lua on a real server."""

from __future__ import annotations

import pytest
import redis

from rmq.kernel.consumer import scripts
from rmq.kernel.core import metrics
from rmq.kernel.topic import scripts as topic_scripts


def report(box, *counts):
    return box.run(scripts.lateness_report(box.keys, box.session(), counts))


def counts_of(box):
    return box.run(topic_scripts.stats_and_lateness(box.keys)).lateness


def test_counts_are_added_bucket_by_bucket_and_nothing_else_changes(box):
    session = box.session()
    before = box.state()
    assert counts_of(box) == ()

    box.run(scripts.lateness_report(box.keys, session, (1, 0, 3)))

    assert {place for place in box.changed(before) if not place[1].startswith("replay")} == {
        ("slot", "lateness")
    }
    assert counts_of(box) == (1, 0, 3)
    report(box, 1, 1, 1, 7)
    report(box, 5)
    assert counts_of(box) == (7, 1, 4, 7)


def test_a_report_that_is_sent_twice_is_added_once(box):
    session = box.session()

    box.twice(lambda: scripts.lateness_report(box.keys, session, (2, 1)))

    assert counts_of(box) == (2, 1)


def test_large_counts_keep_their_digits(box):
    report(box, 999_999_999_999)
    for _ in range(200):
        report(box, 999_999_999_999)
    assert counts_of(box) == (201 * 999_999_999_999,)


def test_counts_of_all_buckets_are_kept(box):
    report(box, *range(metrics.BUCKETS))
    assert counts_of(box) == tuple(range(metrics.BUCKETS))


@pytest.mark.parametrize("counts", [(), (1,) * 65, (-1,), (1e3,), ("x",)])
def test_no_counts_and_too_many_and_what_is_no_number_are_refused(box, counts):
    report(box, 1)
    before = box.state()

    with pytest.raises(redis.ResponseError, match="RMQARG"):
        report(box, *counts)

    after = box.state()
    assert after["slot"]["lateness"] == before["slot"]["lateness"]
    assert set(after) == set(before)
