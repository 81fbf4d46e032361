"""The rules of roles on a real Redis Cluster: what works, what is refused, what is needed there."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import redis

import rmq
from rmq.kernel.core.keys import topic_key
from rmq.kernel.topic import clock as command_clock
from rmq.kernel.transport import acl
from rmq.kernel.transport.hash_slots import hash_slot
from tests.acl.conftest import ENGINES
from tests.acl.registry import ON_TOPICS
from tests.acl.scene import DONE_WITHOUT, PASSWORD, USER, Scene
from tests.acl.steps import STEPS
from tests.acl.test_refusals import (
    STEP,
    test_a_worker_with_its_heartbeat_and_status as test_a_worker_with_its_heartbeat_and_status,
)
from tests.cluster.conftest import ClusterAsServer
from tests.clusters import Cluster
from tests.servers import Server, engines

# What a cluster has not: databases, a question for the role of the only server. Hand-overs there
# are tested in tests/cluster.
FORBIDDEN = [
    ("FLUSHALL",), ("CLUSTER", "RESET"), ("CLUSTER", "FAILOVER"), ("CLUSTER", "NODES"),
    ("CLUSTER", "SETSLOT", "1", "STABLE"), ("CLUSTER", "MEET", "127.0.0.1", "1"),
    ("CLUSTER", "ADDSLOTS", "1"), ("MIGRATE", "127.0.0.1", "1", "k", "0", "1"), ("READONLY",),
    ("EVAL", "return 1", "0"), ("CONFIG", "GET", "*"), ("KEYS", "*"),
]  # fmt: skip
ELSEWHERE = {
    "connects", "asks_for_the_role_of_the_server", "hands_over", "gives_to_another_that_waits",
    "redrives_to_one_that_waits",
}  # fmt: skip
# One of each role that calls several slots, or all masters; what a script needs inside of its slot
# is the same on a server.
ONE_STEP = {
    "producer": "stages_and_publishes", "consumer": "receives_many", "worker": "serves_schedules",
    "operator": "resizes_topics", "viewer": "looks_at_the_rest", "server": "sends_what_is_due",
    "admin": "keeps_the_tokens",
}  # fmt: skip
ALL_STEPS = [
    pytest.param(role, step, marks=[] if step == ONE_STEP[role] else [pytest.mark.slow])
    for role in STEPS
    for step in STEPS[role]
    if step not in ELSEWHERE
]
REFUSED = {"producer": "operates_queries", "consumer": "stages_and_publishes",
           "worker": "looks_at_the_rest", "operator": "claims_keys",
           "viewer": "repairs"}  # fmt: skip


class ClusterScene(Scene):
    """A scene on a cluster. Each node has users of its own; replicas, too."""

    def __init__(self, cluster: Cluster, server: Any, name: str) -> None:
        self.cluster = cluster
        super().__init__(server, name)
        self.url = cluster.url.replace("://", f"://{USER}:{PASSWORD}@")

    @property
    def servers(self) -> Iterable[Server]:
        return self.cluster.nodes

    def grant_words(self, words: Iterable[str]) -> None:
        given = list(words)
        for node in self.cluster.nodes:
            node.call("ACL", "SETUSER", USER, "on", "resetpass", f">{PASSWORD}", *given)

    def close(self) -> None:
        super().close()
        for node in self.cluster.nodes:
            node.call("ACL", "DELUSER", USER)


@pytest.fixture(scope="module", params=ENGINES)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster of each engine in turn; the tests of the module run on one after the other."""
    made = Cluster(engines()[request.param], is_calm=True)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def as_server(cluster: Cluster) -> Iterator[ClusterAsServer]:
    made = ClusterAsServer(cluster)
    yield made
    made.stop()


@pytest.fixture
def scene(cluster: Cluster, as_server: ClusterAsServer, name: str) -> Iterator[ClusterScene]:
    made = ClusterScene(cluster, as_server, name)
    yield made
    made.close()
    command_clock.set_clock(None)


@pytest.mark.parametrize(("role", "step"), ALL_STEPS)
def test_a_role_may_do_what_it_is_for(scene: ClusterScene, role: acl.Role, step: str) -> None:
    scene.grant(role)

    STEPS[role][step](scene)

    assert scene.refused() <= DONE_WITHOUT.get(step, set())


@contextlib.contextmanager
def moved_half_way(s: ClusterScene) -> Iterator[bytes]:
    """The key of a topic's settings, while it is at a master that does not have its slot yet."""
    key = topic_key("rmq", s.name)
    s.full.topic(s.name).open()
    source, slot = s.cluster.master_of(key), hash_slot(key)
    target = next(node for node in s.cluster.masters() if node is not source)
    s.cluster.begin_move(slot, target)
    try:
        assert s.cluster.migrate(slot, source, target) >= 1
        yield key
    finally:
        s.cluster.end_move(slot, source, target)


def open_half_way(s: ClusterScene) -> None:
    with moved_half_way(s):
        s.api.topic(s.name).open(create=False)


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("role", ON_TOPICS)
def test_a_role_follows_a_slot_that_moves(scene: ClusterScene, role: acl.Role, kind: str) -> None:
    scene.kind = kind
    scene.grant(role)

    open_half_way(scene)

    assert scene.refused() == set()


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("command", sorted(acl.CLUSTER))
@pytest.mark.parametrize("role", ON_TOPICS)
def test_each_command_for_clusters_is_needed_and_named(
    scene: ClusterScene, role: acl.Role, command: str, kind: str
) -> None:
    scene.kind = kind
    scene.grant(role, without=command)

    with pytest.raises(rmq.AccessDenied, match=rf"SETUSER \S+ {re.escape(f'+{command} (')}"):
        open_half_way(scene)


@pytest.mark.parametrize(("role", "step"), REFUSED.items())
def test_a_role_is_refused_what_others_are_for(
    scene: ClusterScene, role: acl.Role, step: str
) -> None:
    scene.grant(role)

    with pytest.raises(rmq.AccessDenied, match=r"ACL SETUSER \S+ '?[+~&]|\+subscribe"):
        STEP[step](scene)


@pytest.mark.parametrize("role", acl.ROLES)
def test_what_ends_or_rebuilds_a_cluster_is_refused(scene: ClusterScene, role: acl.Role) -> None:
    scene.grant(role)
    for node in scene.cluster.nodes:
        with node.raw(username=USER, password=PASSWORD) as user:
            for words in FORBIDDEN:
                with pytest.raises(redis.exceptions.NoPermissionError):
                    user.execute_command(*words)


@pytest.mark.parametrize("role", ON_TOPICS)
def test_topics_that_were_not_named_are_refused(scene: ClusterScene, role: acl.Role) -> None:
    scene.grant(role)
    other = f"{scene.name}_eu"
    scene.full.topic(other).open()

    with pytest.raises(rmq.AccessDenied, match=re.escape(f"'~rmq:{{{other}}}:*'")):
        scene.api.topic(other).open(create=False)


def test_a_user_that_one_node_does_not_know_is_refused_there(scene: ClusterScene) -> None:
    scene.grant("producer")
    topic = scene.topic(slots=16)
    topic.send_many([rmq.Outgoing(n) for n in range(100)])
    with scene.cluster.masters()[1].raw() as raw:
        raw.execute_command("ACL", "DELUSER", USER)

    with pytest.raises(rmq.ConfigurationError, match="check user, password and ACL"):
        scene.connect().topic(scene.name).send_many([rmq.Outgoing(n) for n in range(100)])
