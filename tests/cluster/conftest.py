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
    """A cluster of the newest engine, shared by the tests of a session; no master of it is lost."""
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


@pytest.fixture(scope="session")
def server(cluster: Cluster) -> Iterator[ClusterAsServer]:
    made = ClusterAsServer(cluster)
    yield made
    made.stop()
