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


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster of the newest engine, shared by the tests of a session."""
    made = Cluster(any_binary())
    yield made
    made.stop()


@pytest.fixture
def own_cluster() -> Iterator[Cluster]:
    """A cluster for one test that will hurt it."""
    made = Cluster(any_binary())
    yield made
    made.stop()


class Raw(redis.RedisCluster):
    """A plain client of a cluster that knows the subscribers of all nodes."""

    def _all(self) -> list[redis.Redis]:
        return [redis.Redis(host=str(node.host), port=node.port) for node in self.get_nodes()]

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

    def raw(self, **options: Any) -> Raw:
        return Raw(host="127.0.0.1", port=self.port, **options)


@pytest.fixture
def server(cluster: Cluster) -> ClusterAsServer:
    return ClusterAsServer(cluster)
