"""`rmq archive`: Parquet files with each acked message once, in folders by day."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import rmq
from rmq.errors import ConfigurationError, HistoryLost, InvalidValue, StoreUnavailable
from rmq.features.history import archive as archiving
from rmq.kernel.core import object_store
from tests.conftest import Clock
from tests.integration.test_history import settle
from tests.servers import Server

KEEP = rmq.History(keep="7d", max_bytes="64MiB")
HOUR_MS = 3_600_000


def acked(topic: rmq.Topic, bodies: Any) -> None:
    topic.send_many([each if isinstance(each, rmq.Outgoing) else rmq.Outgoing(each)
                     for each in bodies])  # fmt: skip
    settle(topic, len(bodies))


def archive(topic: rmq.Topic, to: Path | str, clock: Clock, **options: Any) -> archiving.Archived:
    given = {"every_ms": HOUR_MS, "skip_lost": False} | options
    return archiving.archive(topic.history, topic.name, str(to), clock.now_ms, **given)


def rows(to: Path) -> list[dict[str, Any]]:
    files = sorted(to.glob("day=*/*.parquet"))
    return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]


def values(to: Path) -> list[int]:
    return sorted(int(row["value"]) for row in rows(to))


def test_messages_are_written_once_by_day_when_their_hour_has_ended(
    client: rmq.Client, name: str, clock: Clock, tmp_path: Path
) -> None:
    topic = client.topic(name, slots=3, history=KEEP)
    for n in range(30):  # the clock begins at 14:13
        acked(topic, [n])
        clock.advance(1800)

    first = archive(topic, tmp_path, clock)
    again = archive(topic, tmp_path, clock)

    assert (first.files, first.messages, first.lost_to) == (15, 30, None)
    assert (again.files, again.messages, again.upto) == (0, 0, first.upto)
    assert values(tmp_path) == list(range(30))
    days = {path.parent.name for path in tmp_path.glob("day=*/*")}
    assert days == {"day=2026-09-21", "day=2026-09-22"}
    for row in rows(tmp_path):
        assert isinstance(row["acked_at"], datetime)
    acked(topic, [30])
    assert archive(topic, tmp_path, clock).messages == 0  # its hour has not ended
    clock.advance(3600)
    assert archive(topic, tmp_path, clock).messages == 1
    assert values(tmp_path) == list(range(31))


def test_a_window_is_written_a_minute_after_its_end(
    client: rmq.Client, name: str, clock: Clock, tmp_path: Path
) -> None:
    topic = client.topic(name, history=KEEP)
    clock.advance(3600 - clock.now_us / 1e6 % 3600)
    acked(topic, [1])
    clock.advance(3600 + 59)

    assert archive(topic, tmp_path, clock).messages == 0
    clock.advance(1)
    assert archive(topic, tmp_path, clock).messages == 1


def test_the_columns_have_the_parts_of_a_message(
    client: rmq.Client, name: str, clock: Clock, tmp_path: Path
) -> None:
    topic = client.topic(name, history=KEEP, groups=rmq.Groups())
    id = topic.send({"n": 1}, type="paid", group="g", priority=500, headers={"a": "b"}).id
    settle(topic, 1)
    acked_ms = clock.now_ms
    at = datetime.fromtimestamp(acked_ms / 1000, UTC)
    clock.advance(7200)

    archive(topic, tmp_path, clock)

    assert rows(tmp_path) == [
        {
            "message_id": str(id), "topic": name, "slot": 0, "entry": f"{acked_ms}-0",
            "acked_at": at, "value": b'{"n":1}', "type": "paid", "group": "g", "priority": 500,
            "merge_key": None, "headers": [("a", "b")], "unreadable": None,
        }
    ]  # fmt: skip


def test_large_windows_have_several_row_groups(
    client: rmq.Client, name: str, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "ROWS", 50)
    monkeypatch.setattr(archiving, "PAGE", 20)
    topic = client.topic(name, slots=2, history=KEEP)
    acked(topic, range(200))
    clock.advance(7200)

    archive(topic, tmp_path, clock)

    (file,) = tmp_path.glob("day=*/*.parquet")
    assert pq.ParquetFile(file).num_row_groups > 2
    assert values(tmp_path) == list(range(200))


def test_lost_messages_are_an_error_and_can_be_skipped(
    client: rmq.Client, name: str, clock: Clock, tmp_path: Path
) -> None:
    topic = client.topic(name, history=rmq.History(keep="7d", max_bytes=1 << 20))
    acked(topic, [1])
    clock.advance(3600)
    assert archive(topic, tmp_path, clock).messages == 1
    acked(topic, ["x" * 200_000] * 8)
    acked(topic, [2])
    clock.advance(7200)

    with pytest.raises(HistoryLost, match=r"before they were archived.*--skip-lost"):
        archive(topic, tmp_path, clock)
    done = archive(topic, tmp_path, clock, skip_lost=True)

    assert done.lost_to is not None
    assert 1 < done.messages < 9
    assert archive(topic, tmp_path, clock) == (0, 0, done.upto, None)


def test_what_was_removed_before_the_first_run_is_not_lost(
    client: rmq.Client, name: str, clock: Clock, tmp_path: Path
) -> None:
    topic = client.topic(name, slots=2, history=rmq.History(keep="7d", max_bytes=1 << 20))
    acked(topic, ["x" * 200_000] * 12)
    clock.advance(7200)

    assert archive(topic, tmp_path, clock).lost_to is None


def test_another_length_of_the_windows_is_refused(
    client: rmq.Client, name: str, clock: Clock, tmp_path: Path
) -> None:
    topic = client.topic(name, history=KEEP)
    topic.open()
    archive(topic, tmp_path, clock)

    with pytest.raises(InvalidValue, match="windows of 3600 s"):
        archive(topic, tmp_path, clock, every_ms=900_000)
    with pytest.raises(InvalidValue, match="part of a day"):
        archive(topic, tmp_path, clock, every_ms=7_000_000)


@pytest.mark.parametrize("to", ["s9://bucket/x", "://"])
def test_an_unknown_store_is_refused(client: rmq.Client, name: str, clock: Clock, to: str) -> None:
    topic = client.topic(name, history=KEEP)
    topic.open()

    with pytest.raises(InvalidValue, match="to: "):
        archive(topic, to, clock)


def test_a_topic_without_a_history_is_refused(
    client: rmq.Client, name: str, clock: Clock, tmp_path: Path
) -> None:
    topic = client.topic(name)
    topic.open()

    with pytest.raises(ConfigurationError, match="keeps no history"):
        archive(topic, tmp_path, clock)


def test_without_pyarrow_the_error_has_the_command(
    client: rmq.Client, name: str, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.fs", None)

    with pytest.raises(ConfigurationError, match=r'pip install "\.\[archive\]"'):
        archive(client.topic(name, history=KEEP), tmp_path, clock)


def test_slots_before_and_after_a_resize_are_archived(
    client: rmq.Client, name: str, clock: Clock, tmp_path: Path
) -> None:
    topic = client.topic(name, slots=4, history=KEEP)
    acked(topic, range(20))
    client.admin.topic_resize(name, 2)
    topic = client.topic(name)
    acked(topic, range(20, 40))
    client.admin.topic_resize(name, 6)
    acked(topic, range(40, 60))
    clock.advance(7200)

    assert archive(topic, tmp_path, clock).messages == 60
    assert values(tmp_path) == list(range(60))


def test_an_offloaded_body_is_written_and_a_missing_store_is_an_error(
    client: rmq.Client, name: str, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codec = rmq.Offloaded(f"file://{tmp_path}/bodies", above=10)
    topic = client.topic(name, codec=codec, history=KEEP)
    acked(topic, ["x" * 100])
    clock.advance(7200)
    with monkeypatch.context() as patch:
        patch.setattr(object_store, "_stores", {})
        with pytest.raises(StoreUnavailable, match="Set RMQ_STORES"):
            archive(topic, tmp_path / "one", clock)
        archive(topic, tmp_path / "two", clock, skip_lost=True)

    archive(topic, tmp_path / "one", clock)

    assert [row["value"] for row in rows(tmp_path / "one")] == [b'"' + b"x" * 100 + b'"']
    (row,) = rows(tmp_path / "two")
    assert "is in a store" in row["unreadable"]


def test_a_file_that_another_run_completed_meanwhile_stays(
    client: rmq.Client, name: str, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = client.topic(name, history=KEEP)
    acked(topic, range(5))
    clock.advance(7200)
    table = archiving._Window._table

    def slow(*args: Any) -> Any:
        monkeypatch.setattr(archiving._Window, "_table", table)
        assert archive(topic, tmp_path, clock).messages == 5
        return table(*args)

    monkeypatch.setattr(archiving._Window, "_table", slow)

    assert archive(topic, tmp_path, clock)[:2] == (0, 0)
    assert values(tmp_path) == list(range(5))
    assert list((tmp_path / "_rmq" / "unfinished").iterdir()) == []


def test_a_viewer_may_archive(
    client: rmq.Client, server: Server, name: str, clock: Clock, tmp_path: Path
) -> None:
    acked(client.topic(name, history=KEEP), range(5))
    clock.advance(7200)
    with server.raw() as raw:
        rules = rmq.acl_rules("viewer").words()
        raw.execute_command("ACL", "SETUSER", "eye", "on", ">pw", *rules)
        with rmq.Client(server.url.replace("redis://", "redis://eye:pw@")) as eye:
            assert eye.admin.stats(name)["now_ms"] == clock.now_ms
            assert archive(eye.topic(name), tmp_path, clock).messages == 5
        raw.execute_command("ACL", "DELUSER", "eye")


def test_unfinished_files_are_removed_after_a_day(
    client: rmq.Client, name: str, clock: Clock, tmp_path: Path
) -> None:
    topic = client.topic(name, history=KEEP)
    topic.open()
    archive(topic, tmp_path, clock)
    unfinished = tmp_path / "_rmq" / "unfinished"
    (unfinished / "old").write_bytes(b"x")
    (unfinished / "new").write_bytes(b"x")
    os.utime(unfinished / "old", (1, 1))

    archive(topic, tmp_path, clock)

    assert [path.name for path in unfinished.iterdir()] == ["new"]
