"""A standalone cluster of two workers: a slow task, its speculative copy, and what is published."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import rmq
from tests.servers import Server
from tests.spark.cluster import Cluster
from tests.spark.cluster_driver import attempts
from tests.spark.conftest import MISSING
from tests.spark.long import long
from tests.spark.target import taken

pytestmark = [
    pytest.mark.timeout(600),  # six cold JVMs on a busy machine
    long("test_cluster.py"),
]

ROWS = 400


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    if MISSING:
        pytest.fail(MISSING)
    made = Cluster(tmp_path)
    yield made
    made.stop()


def test_rows_of_a_task_that_its_speculative_copy_overtook_are_not_published(
    server: Server, client: rmq.Client, name: str, cluster: Cluster, tmp_path: Path
) -> None:
    source = client.topic(name, slots=2)
    target = client.topic(f"{name}-copy", slots=4, dedup_window=0)
    naive = client.topic(f"{name}-naive", slots=4, dedup_window=0)
    for one in (target, naive):
        one.open()
    source.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(ROWS)])

    failed = cluster.run(
        "tests.spark.cluster_driver",
        server.url, source.name, target.name, naive.name, str(tmp_path),
    )  # fmt: skip

    assert not failed, failed
    told = attempts(tmp_path, "staged")
    straggler, copy = [one for one in told if one["partition"] == 0]
    assert straggler["rows"] == copy["rows"] > 0  # both have staged all of them
    assert copy["rival_alive"]  # at the same time
    assert straggler["executor"] != copy["executor"]
    assert sum(one["rows"] for one in told) == ROWS + straggler["rows"]

    assert taken(target) == Counter(range(ROWS))
    stats = client.admin.stats(source.name)
    assert (stats["in_flight"], stats["settled"]) == (0, ROWS)
    with server.raw() as raw:
        left = raw.keys(f"*{{{target.name}_*}}:stage:*")
        assert all(0 < raw.ttl(key) <= 86_400 for key in left)
        assert left  # of the loser, whom Spark killed: it goes by itself

    # The control: a sink without stages has the rows of both attempts.
    doubled = taken(naive)
    told = attempts(tmp_path, "naive")
    (extra,) = [one["rows"] for one in told if one["partition"] == 0 and one["attempt"] == 0]
    assert set(doubled) == set(range(ROWS))
    assert doubled.total() == ROWS + extra > ROWS
