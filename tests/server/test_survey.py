"""The survey: what it says of topics that it cannot read."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

import rmq
from rmq.http_framework.survey import Survey
from tests.servers import Server as Redis


@pytest.fixture
def limited(server: Redis, prefix: str) -> Iterator[rmq.Client]:
    """A client whose user may read topics that begin with `own`."""
    words = rmq.acl_rules("server", topics=["own*"], prefix=prefix, server_version="6.2").words()
    raw = server.raw()
    raw.execute_command("ACL", "SETUSER", prefix, "reset", "on", ">pw", *words)
    place = urlsplit(server.url)
    with rmq.Client(
        f"redis://{prefix}:pw@{place.hostname}:{place.port}/0", prefix=prefix
    ) as client:
        yield client
    raw.execute_command("ACL", "DELUSER", prefix)


def test_topics_that_may_not_be_read_make_one_warning(
    client: rmq.Client,
    limited: rmq.Client,
    prefix: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name in ("own", "a", "b", "c"):
        client.topic(name).open()
    survey = Survey(limited._transport, prefix)

    def warnings() -> list[str]:
        survey.run_once()
        found = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
        caplog.clear()
        return found

    (warning,) = warnings()
    assert warning.startswith("3 topics may not be read by the Redis user of this server")
    assert "the first is 'a': " in warning
    assert list(survey.topics) == ["own"]
    assert warnings() == []

    client.topic("d").open()
    (warning,) = warnings()
    assert warning.startswith("4 topics ")

    for name in ("b", "c", "d"):
        client.admin.topic_delete(name)
    (warning,) = warnings()
    assert warning.startswith("1 topic may ")
    client.admin.topic_delete("a")
    assert warnings() == []
