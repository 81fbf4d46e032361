"""Topics that another version of RMQ wrote, in another format."""

from __future__ import annotations

from typing import Any

import pytest
import redis

import rmq
from rmq.kernel.core.keys import topic_key
from rmq.kernel.core.settings import FORMAT
from tests.servers import Server


def everything(raw: redis.Redis, name: str) -> dict[bytes, Any]:
    # A hash that is a table is dumped in the order in which Redis has it just now.
    return {
        key: raw.hgetall(key) if raw.type(key) == b"hash" else raw.dump(key)
        for key in raw.scan_iter(f"rmq:*{name}*")
    }


USES: list[Any] = [
    lambda api, name, id: api.topic(name).open(),
    lambda api, name, id: api.topic(name).open(create=False),
    lambda api, name, id: api.topic(name, slots=2).send("x"),
    lambda api, name, id: api.topic(name).send("x", id=id),
    lambda api, name, id: api.topic(name).new_id(),
    lambda api, name, id: api.topic(name).get(id),
    lambda api, name, id: api.topic(name).consumer().receive(1),
    lambda api, name, id: api.admin.stats(name),
    lambda api, name, id: api.admin.peek(name),
    lambda api, name, id: api.admin.purge(name, "store"),
    lambda api, name, id: api.admin.settings(name),
    lambda api, name, id: api.admin.topic_set(name, lease=60),
    lambda api, name, id: api.admin.topic_delete(name, force=True),
]
OTHERS = [str(FORMAT - 1), "", None]  # what else may be written there, or nothing
CASES = [
    *((use, str(FORMAT + 1)) for use in USES),
    *((USES[0], written) for written in OTHERS),
    *(pytest.param(u, w, marks=pytest.mark.slow) for u in USES[1:] for w in OTHERS),
]


@pytest.mark.parametrize(("use", "written"), CASES)
def test_a_topic_of_another_format_is_refused_and_not_written(
    api: Any, name: str, server: Server, raw: redis.Redis, use: Any, written: str | None
) -> None:
    with rmq.Client(server.url) as other:
        id = other.topic(name, slots=2).send("x").id
    if written is None:
        raw.hdel(topic_key("rmq", name), "format")
    else:
        raw.hset(topic_key("rmq", name), "format", written)
    before = everything(raw, name)

    with pytest.raises(rmq.FormatMismatch) as caught:
        use(api, name, id)

    assert str(caught.value) == (
        f"topic '{name}' has format {written or 'none'}, and this RMQ reads format {FORMAT}; "
        "nothing was changed. Install the version that wrote it, or use another name or prefix"
    )
    assert everything(raw, name) == before
