"""Redis users with few rights behind Sentinel: at the servers, and at the sentinels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

import rmq
from rmq.kernel.transport import acl
from tests.acl.conftest import ENGINES
from tests.acl.registry import ON_TOPICS
from tests.acl.scene import PASSWORD, USER, Scene
from tests.sentinels import SERVICE, Sentinels
from tests.servers import Server, engines

WATCHER, WATCHERS_PASSWORD = "watcher", "w4tch"
WATCHERS_RULES = ("resetkeys", "resetchannels", "-@all", "+sentinel|master")  # of docs/security.md


@pytest.fixture(scope="module", params=ENGINES)
def service(request: pytest.FixtureRequest) -> Iterator[Sentinels]:
    """A service of each engine in turn, whose sentinels ask for a user."""
    made = Sentinels(engines()[request.param])
    for sentinel in made.sentinels:
        set_user(sentinel, WATCHER, WATCHERS_PASSWORD, WATCHERS_RULES)
    yield made
    made.stop()


def set_user(server: Server, user: str, password: str, rules: Iterable[str]) -> None:
    with server.raw() as raw:
        raw.execute_command("ACL", "SETUSER", user, "on", "resetpass", f">{password}", *rules)


class SentinelScene(Scene):
    """A scene whose user comes through the sentinels."""

    def __init__(self, service: Sentinels, name: str) -> None:
        super().__init__(service.master, name)
        self.url = service.url(
            f"/{SERVICE}/0?sentinel_username={WATCHER}&sentinel_password={WATCHERS_PASSWORD}",
            user=f"{USER}:{PASSWORD}@",
        )


@pytest.fixture
def scene(service: Sentinels, name: str) -> Iterator[SentinelScene]:
    made = SentinelScene(service, name)
    yield made
    made.close()


def open_topic(s: SentinelScene) -> None:
    s.topic().open(create=False)


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("role", ON_TOPICS)  # others open none
def test_a_role_connects_to_the_master(scene: SentinelScene, role: acl.Role, kind: str) -> None:
    scene.kind = kind
    scene.grant(role)

    open_topic(scene)

    assert scene.refused() == set()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_without_the_right_to_ask_for_the_role_the_error_names_it(
    scene: SentinelScene, kind: str
) -> None:
    scene.kind = kind
    scene.grant("producer", without="role")

    with pytest.raises(rmq.AccessDenied, match=r"ACL SETUSER \S+ \+role"):
        open_topic(scene)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_without_the_right_to_ask_for_the_master_the_error_says_so(
    service: Sentinels, scene: SentinelScene, kind: str
) -> None:
    scene.kind = kind
    scene.grant("producer")
    for sentinel in service.sentinels:
        set_user(sentinel, WATCHER, WATCHERS_PASSWORD, ["-@all"])
    try:
        with pytest.raises(rmq.ConfigurationError, match="sentinels refuse access"):
            open_topic(scene)
    finally:
        for sentinel in service.sentinels:
            set_user(sentinel, WATCHER, WATCHERS_PASSWORD, WATCHERS_RULES)
