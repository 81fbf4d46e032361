"""How many bytes each verb appends to the append-only file: limits for each message."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.cost.lives import Life, Query
from bench.cost.spending import Meter
from tests.servers import Server, engines

# By life, messages in a call and verb: bytes for each message, without its body. Before scores and
# answers of sessions were shortened, batches of 100 had 86 (send), 69 (take) and 78 (query_take).
LIMITS = {
    (Life, 1): {"send": 360, "take": 375, "ack": 290},
    (Life, 100): {"send": 85, "take": 51, "ack": 24},
    (Query, 100): {"query_take": 72, "query_settle": 27},
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    own = Server(list(engines().values())[-1], aof=True)
    yield own
    own.stop()


@pytest.mark.parametrize(("kind", "k"), LIMITS)
def test_the_bytes_of_a_message_in_the_append_only_file_have_limits(
    server: Server, kind: type[Life], k: int
) -> None:
    life = kind(server.url, f"{kind.__name__}-{k}".lower(), k, calls=8)
    with server.raw() as raw:
        life.run(Meter(raw))  # the first calls of sessions write more
        meter = Meter(raw)
        life.run(meter)
    life.close()

    bytes_each = {verb: meter.spent[verb].each()["aof"] for verb in LIMITS[kind, k]}
    bytes_each |= {"send": bytes_each["send"] - len(life.body())} if "send" in bytes_each else {}
    assert {verb: each for verb, each in bytes_each.items() if each > LIMITS[kind, k][verb]} == {}
    assert min(bytes_each.values()) > 15
