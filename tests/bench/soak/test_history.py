from __future__ import annotations

import json

import pytest

from bench.soak.history import HistoryError, Recorder, parse, read

BASE = {"type": "ok", "op": "handle", "t": 1, "wall": 2, "pid": 3, "id": "m"}


def line(**facts: object) -> bytes:
    return json.dumps(BASE | facts).encode() + b"\n"


def test_what_is_recorded_is_read(tmp_path):
    path = tmp_path / "history.jsonl"
    recorders = [Recorder(path), Recorder(path)]

    recorders[0].record("invoke", "send", id="m", digest="d", priority=20)
    recorders[1].record("ok", "send", id="m", slot=3, level="fsync")
    for recorder in recorders:
        recorder.close()

    asked, told = read(path)
    assert (asked.type, asked.op, asked.digest, asked.priority) == ("invoke", "send", "d", 20)
    assert (told.slot, told.level) == (3, "fsync")
    assert 0 < asked.t <= told.t
    assert asked.pid == told.pid


def test_a_last_line_without_an_end_is_left_out(tmp_path):
    path = tmp_path / "history.jsonl"
    path.write_bytes(line() + line()[:20])

    assert len(list(read(path))) == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"{\n", "line 5 is not JSON"),
        (b"\xff\n", "line 5 is not JSON"),
        (b"[1]\n", "line 5 is not a JSON object"),
        (line(recipt="r"), "line 5: no event has the field 'recipt'"),
        (line(t="1"), "line 5: field 't' is '1', not a whole number"),
        (line(t=True), "line 5: field 't' is True, not a whole number"),
        (line(t=1.5), "line 5: field 't' is 1.5, not a whole number"),
        (line(id=7), "line 5: field 'id' is 7, not a text"),
        (line(op="eat"), "line 5: field 'op' is 'eat', not one of start, send"),
        (line(type="yes"), "line 5: field 'type' is 'yes', not one of invoke"),
        (line(op="deliver"), "line 5: field 'receipt' is missing"),
        (line(id=""), "line 5: field 'id' is missing"),
        (b'{"type": "ok", "op": "drain", "wall": 1, "pid": 1}\n', "line 5: field 't' is missing"),
    ],
)
def test_an_error_names_the_line_and_the_field(text, told):
    with pytest.raises(HistoryError) as raised:
        parse(text, 5)

    assert told in str(raised.value)


def test_a_good_line_raises_nothing():
    assert parse(line(), 1).id == "m"
