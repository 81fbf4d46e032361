"""A cluster that the tests of this folder share, and `server` for tests that know of none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.clusters import Cluster
from tests.conftest import any_binary
from tests.integration.conftest import api, handles, kind, link, scene

__all__ = ["api", "handles", "kind", "link", "scene"]


# Tests of which `make test` plays one case on a cluster, and all cases on one server.
ONE_CASE = {
    "test_a_cancel_ends_all_members_in_pages_and_sends_one_callback",
    "test_another_max_retries_holds_at_once_for_a_client_that_does_not_know_it",
    "test_batch_cut_anywhere_is_ended_with_what_it_began_with",
    "test_batch_of_several_topics_cut_anywhere_is_ended_with_what_it_began_with",
    "test_deletion_that_was_cut_off_anywhere_can_be_repeated",
    "test_merging_messages_of_a_batch_merge_as_if_sent_one_by_one",
    "test_order_outlives_failures_snoozes_lapses_and_consumers_that_come_and_go",
}
_collected: set[str] = set()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Leave to CI all cases but the first of the tests of `ONE_CASE`."""
    name = getattr(item, "originalname", "")
    if name in ONE_CASE and name in _collected:
        item.add_marker(pytest.mark.slow)
    _collected.add(name)


@pytest.fixture(scope="package")
def cluster() -> Iterator[Cluster]:
    """A cluster of the newest engine, shared by the tests of this folder; no master of it is lost.

    It ends with the folder: six nodes that talk to each other use CPU while nobody calls them.
    """
    made = Cluster(any_binary(), is_calm=True)
    yield made
    made.stop()


@pytest.fixture
def own_cluster() -> Iterator[Cluster]:
    """A cluster for one test that will hurt it."""
    made = Cluster(any_binary())
    yield made
    made.stop()


@pytest.fixture
def calm_cluster() -> Iterator[Cluster]:
    """A cluster for one test, in which a replica takes over when the test tells it to."""
    made = Cluster(any_binary(), is_calm=True)
    yield made
    made.stop()


class Raw(redis.RedisCluster):
    """A plain client of a cluster that knows the subscribers of all nodes."""

    def _all(self) -> list[redis.Redis]:
        return [self.get_redis_connection(node) for node in self.get_nodes()]

    def close(self) -> None:
        """Keep the connections: to ask a cluster for its commands costs more than most tests."""

    def info(self, *sections: Any, **_: Any) -> Any:
        """As of one server; how often commands were called is the sum of all nodes."""
        if sections != ("commandstats",):
            return super().info(*sections)
        calls: Counter[str] = Counter()
        for node in self._all():
            stats: Any = node.info("commandstats")
            calls.update({name: stat["calls"] for name, stat in stats.items()})
        return {name: {"calls": count} for name, count in calls.items()}

    def pubsub_channels(self, *given: Any, **_: Any) -> list[bytes]:
        return [channel for node in self._all() for channel in node.pubsub_channels(*given)]

    def pubsub_numsub(self, *channels: Any, **_: Any) -> list[tuple[bytes, int]]:
        return [pair for node in self._all() for pair in node.pubsub_numsub(*channels)]


class ClusterAsServer:
    """A cluster, as the tests of a single server ask for theirs."""

    def __init__(self, cluster: Cluster) -> None:
        self.url = cluster.url
        self.port = cluster.nodes[0].port
        self._raw: dict[str, Raw] = {}

    def raw(self, **options: Any) -> Raw:
        """A plain client, the same for the same options."""
        key = repr(options)
        if key not in self._raw:
            self._raw[key] = Raw(host="127.0.0.1", port=self.port, **options)
        return self._raw[key]

    def stop(self) -> None:
        for raw in self._raw.values():
            redis.RedisCluster.close(raw)


@pytest.fixture(scope="package")
def server(cluster: Cluster) -> Iterator[ClusterAsServer]:
    made = ClusterAsServer(cluster)
    yield made
    made.stop()
