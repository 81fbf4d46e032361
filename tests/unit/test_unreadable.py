"""What another program wrote in the place of a value is an error of RMQ, never one of Python."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import msgpack
import pytest

import rmq
from rmq.features.dead_letters.jobs import job
from rmq.features.schedules.schedule import Definition
from rmq.features.spark.scripts import read_report
from rmq.features.workers.status import read_status
from rmq.kernel.core import access, history, settings
from rmq.kernel.core.settings import Settings
from rmq.kernel.topic.audit_trail import AuditLine

TEXTS = (
    "", "abc", "-1", "0", "9" * 400, "nan", "1e999", "1,2,3", "1 2 3", "1\n2", "1\n2\n3",
    "9" * 30 + "\nby\nwhy", "[" * 50_000, "exponential:1:2", "levels:a:b", "rate:0:0:0", "x" * 9999,
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 2**63, 10**400, float("nan"), float("inf"), "", "a", [], [[1]], {}, {"a": 1}
)  # fmt: skip
STORED = {
    **Settings().to_redis(), "created": "1790000000000000", "revision": "1",
    "layout": "1 1 2", "resizing": "1790000000000 1 0,1", "delivered_from": "5", "dealt": "1,2",
    "paused_receive": "1790000000000\nby\nwhy", "paused_send": "1790000000000\nby\nwhy",
}  # fmt: skip


@pytest.mark.parametrize("field", STORED)
@pytest.mark.parametrize("text", [*TEXTS, None], ids=lambda text: repr(text)[:20])
def test_settings_with_a_junk_field_are_an_error_or_can_be_used(
    field: str, text: str | None
) -> None:
    stored = STORED | {field: text} if text is not None else dict(STORED)
    if text is None:
        del stored[field]

    with suppress(rmq.RMQError):
        found = settings.from_redis("t", stored)

        assert 1 <= found.all_slots <= 1024
        found.shown()
        found.slot_stamp(stored.get("created", "1").encode())  # scripts look for it
        for pause in (found.paused, found.sends_paused):
            assert pause is None or pause.since
        found.for_slot(0)
        assert found.objective is None or found.objective.within_s > 0


def variants(value: Any) -> list[Any]:
    """Return a value with each of its parts replaced by each junk."""
    found = list(VALUES)
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, part in [] if isinstance(value, str | bytes) else items:
        parts = variants(part) if isinstance(part, dict | list) else list(VALUES)
        for each in parts:
            made = value.copy()
            made[key] = each
            found.append(made)
        if isinstance(value, dict):
            found.append({name: other for name, other in value.items() if name != key})
    return found


def texts(value: Any) -> list[bytes]:
    """Return JSON of all variants, and what is no JSON."""
    wrong = [b"", b"\xff\xfe", b"[" * 50_000, b"{", b"1e999", b"\xdd\xff\xff\xff\xff"]
    return [*(json.dumps(each).encode() for each in variants(value)), *wrong]


REPORT = {
    "at_ms": 1_790_000_000_000, "host": "h", "pid": 1, "process": 1, "version": "1", "age_ms": 1,
    "keep_ms": 30_000, "runs": [["id", 0, 5]], "run_s": [0.5],
    "handlers": [["t", "f", 4, 1, 1, {"taken": 1}]],
}  # fmt: skip


def test_a_report_of_a_worker_is_read_or_left_out() -> None:
    now_ms = 1_790_000_000_000
    read = [
        read_status("w", text, now_ms) for text in [json.dumps(REPORT).encode(), *texts(REPORT)]
    ]

    assert read[0] is not None
    found = [each for each in read if each is not None]
    assert len(found) < len(read)
    for each in found:
        assert each.pid >= 0
        assert all(handler.concurrency >= 1 for handler in each.handlers)
        assert all(0 <= (handler.run_s or 0) < 1e15 for handler in each.handlers)
    sorted(found, key=lambda status: (status.host, status.pid, status.id))


def test_a_line_of_the_audit_trail_is_read_or_shown_as_it_is() -> None:
    line = AuditLine(1_790_000_000_000, "ann", "purge", "t", "all")
    assert AuditLine.unpack(line.pack().encode(), 0.0) == line

    for text in texts(list(line)):
        for score in (0.0, -1.0, float("inf"), 1e300, 1_790_000_000_000.0):
            found = AuditLine.unpack(text, score)
            assert 0 <= found.at_ms < 10**15
            assert all(isinstance(word, str) for word in found[1:])


def test_a_token_that_cannot_be_read_has_expired() -> None:
    token = access.new_token("t", access.Role.ADMIN, True, 1_790_000_000_000, None)
    packed = json.loads(token.pack())
    for text in texts(packed):
        found = access.unpack(b"t\xff", text)
        assert found.name == "t\N{REPLACEMENT CHARACTER}"
        if found.role is access.Role.VIEWER:
            assert found.has_expired(1)


@pytest.mark.parametrize("field", ["conditions", "rate", "keep_ms", "expected", "began", "ended"])
@pytest.mark.parametrize("text", [each.encode() for each in TEXTS] + [b"\xff", b"null", b"[1]"])
def test_a_job_is_read_or_an_error(field: str, text: bytes) -> None:
    stored = {
        "verb": b"redrive", "conditions": b"{}", "state": b"running", "began": b"1790000000000",
    }  # fmt: skip

    with suppress(rmq.ScriptFailed):
        found = job.read("t.00000000", stored | {field: text})
        assert found.began


def test_the_definition_of_a_schedule_is_read_or_an_error() -> None:
    definition = Definition("n", 1000, None, "UTC", 0, "skip", 0, 1, b"1", None, {}, None, None)
    stored = msgpack.unpackb(definition.pack())
    for name in stored:
        for value in (*VALUES[:5], "abc", [], {}, b"\xff", 1.5):
            with suppress(rmq.RMQError):
                found = Definition.unpack(msgpack.packb(stored | {name: value}))
                assert found.every_ms is None or found.every_ms > 0
                found.due_ms(1_790_000_000_000)
    for wrong in (b"", b"\xc1", b"\xdd\xff\xff\xff\xff", b"\x90", b"\x91" * 5000):
        with pytest.raises(rmq.RMQError):
            Definition.unpack(wrong)


def test_a_sample_is_read_or_left_out() -> None:
    figures = history.StoredSample(1_790_000_000_000, 0, (1,) * 7, (2,) * 6, (0,) * 3 + (5,))
    flat = msgpack.unpackb(history.write(figures))
    found = [history.read(each) for each in (b"", b"\xc1", b"\x91" * 5000, b"\xff\xfe")]
    for place in range(len(flat)):
        for value in (None, -1, 2**63, "a", 1e300, [], 64):
            made = [*flat]
            made[place] = value
            found.append(history.read(msgpack.packb(made)))
    usable = [each for each in found if each is not None]

    assert usable
    history.points(usable, 1_790_000_000_000, 1_790_000_060_000, 10_000)


def test_a_report_of_a_query_has_numbers_that_metrics_can_show() -> None:
    for text in texts({"rows": 1}):
        assert all(abs(float(value)) < 1e17 for value in read_report(text).values())
