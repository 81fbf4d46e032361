"""batch_open.lua on a real server."""

from __future__ import annotations

import pytest
import redis

from tests.lua.batching import CALLBACK, COUNTS_AT, NAME, TARGET, close, fields, open_batch
from tests.lua.box import Box


def test_a_batch_is_created(box: Box) -> None:
    before = box.state()

    assert open_batch(box, "wait", 5000) == (True, "o", "wait", TARGET)

    now = str(box.clock.now_ms)
    assert fields(box) == {
        "#state": "o", "#open": "0", "#all": "0", "#topics": "", "#target": TARGET,
        "#callback": CALLBACK.decode("latin-1"), "#counts_at": str(COUNTS_AT), "#dead": "wait",
        "#keep": "60000", "#created": now, "#touched": now,
        "#timeout": str(box.clock.now_ms + 5000),
    }  # fmt: skip
    assert {name for name, *_ in box.changed(before)} <= {f"batch:{NAME}"}


def test_a_batch_that_exists_is_not_changed(box: Box) -> None:
    open_batch(box)
    before = fields(box)
    box.clock.advance(1)

    assert open_batch(box, "wait", 99, target="other:0") == (False, "o", "count", TARGET)
    assert fields(box) == before
    close(box)
    assert open_batch(box).state == "d"


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("target", {"target": "no place"}),
        ("callback", {"callback": CALLBACK[:80]}),
        ("counts_at", {"counts_at": len(CALLBACK) - 89}),
        ("counts_at", {"counts_at": 16}),
        ("dead", {"dead": "both"}),
        ("timeout_ms", {"timeout_ms": -1}),
        ("keep_ms", {"keep_ms": 0}),
    ],
)
def test_wrong_arguments_change_nothing(box: Box, field: str, given: dict[str, object]) -> None:
    with pytest.raises(redis.ResponseError, match=f"RMQARG {field}"):
        open_batch(box, **given)  # type: ignore[arg-type]
    assert fields(box) == {}


def test_it_is_refused_at_maxmemory(tight: Box) -> None:
    tight.redis.config_set("maxmemory", 1)

    with pytest.raises(redis.ResponseError, match=r"OOM|maxmemory"):
        open_batch(tight)
    assert fields(tight) == {}
