"""Write the history of a topic as Parquet files, in folders by day of the ack.

A window is a period of time, for example one hour. A file has all messages that were acked in one
window. The archiver writes the file when the window has ended, so its content does not change any
more. The name of a file has the topic and the window, and a file gets this name only when it is
complete. So if a run is repeated, or if two archivers run, they write the same files.

After a file, the archiver writes the manifest, which says how far the archive reaches.
docs/history.md describes the rest.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from rmq.errors import DecodeError, HistoryLost, InvalidValue, StoreUnavailable
from rmq.features.history.flows import AckedMessage, Entry, Position, parse_entry
from rmq.features.history.history_blocking import TopicHistory
from rmq.kernel.core import packages, record
from rmq.kernel.core.codec import reference_of
from rmq.kernel.core.score import moment
from rmq.kernel.core.validation import check_epoch_ms
from rmq.kernel.transport.flow.steps import Progress

# A window is read so long after its end, because the clocks of a master and its replica may differ.
CLOCKS_DIFFER_MS = 60_000
PAGE = 1000  # messages of a read
ROWS, ROW_BYTES = 20_000, 32 * 1024 * 1024  # of a row group
STALE_S = 86_400  # age of unfinished files that are removed
DAY_MS = 86_400_000


class Archived(NamedTuple):
    """The result of a run.

    Attributes:
        files: Number of files that the run wrote.
        messages: Number of messages in these files.
        upto: All messages that were acked before this time are in the archive.
        lost_to: Time of the last ack among the messages that the history removed before they were
            archived. None if no message was lost.
    """

    files: int
    messages: int
    upto: datetime
    lost_to: datetime | None


class _Manifest(NamedTuple):
    """The progress of the archive of a topic.

    Attributes:
        every_ms: Length of a window.
        upto_ms: End of the last window that was archived.
        after: Newest entry of each slot that was removed before the first run.
    """

    every_ms: int
    upto_ms: int
    after: Position


class _Folder:
    """The folder of an archive. It can be in any file system of pyarrow."""

    def __init__(self, url: str, topic: str) -> None:
        fs = packages.load("pyarrow.fs", "archive", "rmq archive")
        if "://" not in url:
            url = Path(url).absolute().as_uri()
        try:
            self._files, root = fs.FileSystem.from_uri(url)
        except (ValueError, OSError) as error:
            raise InvalidValue(f"to: {url!r:.200}: {error}") from error
        self._selector, self._none = fs.FileSelector, fs.FileType.NotFound
        self._root, self._topic = root.rstrip("/"), topic
        self._unfinished = f"{self._root}/_rmq/unfinished"
        self._manifest = f"{self._root}/_rmq/{topic}.json"

    def path_of(self, begin_ms: int) -> str:
        """Return the path of the archive's file for the messages of a time window."""
        begin = moment(begin_ms)
        name = f"{self._topic}-{begin:%Y%m%dT%H%M%S}.{begin_ms % 1000:03}Z.parquet"
        return f"{self._root}/day={begin:%Y-%m-%d}/{name}"

    def has(self, path: str) -> bool:
        return bool(self._files.get_file_info(path).type != self._none)

    def read_manifest(self) -> _Manifest | None:
        if not self.has(self._manifest):
            return None
        with self._files.open_input_stream(self._manifest) as stream:
            found = json.loads(stream.read())
        after = {int(slot): entry for slot, entry in found["after"].items()}
        return _Manifest(found["every_ms"], found["upto_ms"], after)

    def write_manifest(self, manifest: _Manifest) -> None:
        """Write the manifest, unless another archiver has written a later manifest."""
        there = self.read_manifest()
        if there is None or there.upto_ms < manifest.upto_ms:
            data = json.dumps(manifest._asdict()).encode()
            self.write(self._manifest, lambda stream: stream.write(data))

    def write(self, path: str, fill: Callable[[Any], Any], replace: bool = True) -> bool:
        """Write a file under a temporary name, and rename it when it is complete.

        Return False if the file already exists and must not be replaced.
        """
        unfinished = f"{self._unfinished}/{os.urandom(8).hex()}"
        self._files.create_dir(self._unfinished)
        with self._files.open_output_stream(unfinished) as stream:
            fill(stream)
        if not replace and self.has(path):
            self._files.delete_file(unfinished)
            return False
        self._files.create_dir(path.rpartition("/")[0])
        self._files.move(unfinished, path)
        return True

    def remove_unfinished(self) -> None:
        """Remove files that an archiver left unfinished when it was killed a day ago or earlier."""
        selector = self._selector(self._unfinished, allow_not_found=True)
        for found in self._files.get_file_info(selector):
            if found.mtime_ns is not None and found.mtime_ns < (time.time() - STALE_S) * 1e9:
                self._files.delete_file(found.path)


def archive(
    history: TopicHistory, topic: str, url: str, now_ms: int, *, every_ms: int, skip_lost: bool,
    progress: Progress | None = None,
) -> Archived:  # fmt: skip
    """Archive the windows that have ended since the last run.

    Args:
        history: Reader of the topic's history.
        topic: Name of the topic.
        url: Folder: a path, or a URL of a file system of pyarrow.
        now_ms: Time of the server, in epoch ms.
        every_ms: Length of a window in ms. A day must have a whole number of windows.
        skip_lost: Whether to continue if messages or objects of bodies were lost.
        progress: Function that RMQ calls as `progress(done, all)` during the work, with two numbers
            of windows.

    Raises:
        ConfigurationError: pyarrow is missing, or the topic keeps no history.
        InvalidValue: A value is not valid, or the folder has windows of another length.
        HistoryLost: The history removed messages before they were archived.
        StoreUnavailable: An offloaded body cannot be read.
        OSError: The file system refused a call.
    """
    if every_ms < 1000 or DAY_MS % every_ms:
        raise InvalidValue(f"every: {every_ms / 1000:g} s; give a part of a day, as 1h or 15m")
    folder = _Folder(url, topic)
    folder.remove_unfinished()
    oldest = history.position("oldest")
    manifest = folder.read_manifest()
    if manifest is None:
        state = history.state()
        begin_ms = now_ms - CLOCKS_DIFFER_MS
        if state is not None and state.oldest is not None:
            begin_ms = min(begin_ms, check_epoch_ms(state.oldest, "oldest", allow_past=True))
        manifest = _Manifest(every_ms, begin_ms, oldest)
        folder.write_manifest(manifest)
    elif manifest.every_ms != every_ms:
        raise InvalidValue(
            f"every: this archive has windows of {manifest.every_ms / 1000:g} s; give this length, "
            "or another folder"
        )
    files = messages = lost_ms = done = 0
    last_ms = (now_ms - CLOCKS_DIFFER_MS) // every_ms * every_ms
    windows = max(0, -(-(last_ms - manifest.upto_ms) // every_ms))
    while manifest.upto_ms < last_ms:
        begin_ms = manifest.upto_ms
        end_ms = (begin_ms // every_ms + 1) * every_ms
        path = folder.path_of(begin_ms)
        written = 0
        if not folder.has(path):
            window = _Window(history, topic, begin_ms, end_ms, manifest.after, skip_lost)
            written = window.write(folder, path)
            files, messages = files + bool(written), messages + written
            lost_ms = max(lost_ms, window.lost_ms)
        manifest = manifest._replace(upto_ms=end_ms)
        done += 1
        if progress:
            progress(done, windows)
        if written or end_ms >= last_ms:
            folder.write_manifest(manifest)
    return Archived(files, messages, moment(manifest.upto_ms), moment(lost_ms) if lost_ms else None)


class _Window:
    """Reads the messages of one window, and writes its file."""

    def __init__(
        self, history: TopicHistory, topic: str, begin_ms: int, end_ms: int, after: Position,
        skip_lost: bool,
    ) -> None:  # fmt: skip
        self._history, self._topic = history, topic
        self._begin_ms, self._end_ms = begin_ms, end_ms
        self._after, self._skip_lost = after, skip_lost
        self.lost_ms = 0

    def write(self, folder: _Folder, path: str) -> int:
        """Write the file, unless the window has no messages. Return the number of messages."""
        pages = self._pages()
        first = next(pages, None)
        if first is None:
            return 0
        count = len(first)
        arrow = packages.load("pyarrow", "archive", "rmq archive")
        parquet = packages.load("pyarrow.parquet", "archive", "rmq archive")
        schema = schema_of(arrow)

        def fill(stream: Any) -> None:
            nonlocal count
            with parquet.ParquetWriter(stream, schema, compression="zstd") as writer:
                writer.write_table(self._table(arrow, schema, first))
                for page in pages:
                    count += len(page)
                    writer.write_table(self._table(arrow, schema, page))

        return count if folder.write(path, fill, replace=False) else 0

    def _pages(self) -> Iterator[list[AckedMessage]]:
        """Yield the messages of the window in parts. Each part becomes a row group of the file."""
        position = self._history.position(moment(self._begin_ms))
        for slot, entry in position.items():
            removed = parse_entry(entry)
            if removed > max((self._begin_ms, -1), parse_entry(self._after.get(slot, "0-0"))):
                self._lose(slot, removed)
        found: list[AckedMessage] = []
        size, is_last = 0, False
        while not is_last:
            try:
                page = self._history.read(
                    since=self._begin_ms, until=self._end_ms, after=position, limit=PAGE
                )
            except HistoryLost as error:
                self._lose(error.slot, parse_entry(error.removed_to))
                position[error.slot] = error.removed_to
                continue
            found += page.messages
            size += sum(len(message.record) for message in page.messages)
            position, is_last = page.position, page.is_last
            if found and (is_last or len(found) >= ROWS or size >= ROW_BYTES):
                yield found
                found, size = [], 0

    def _lose(self, slot: int, removed: Entry) -> None:
        self.lost_ms = max(self.lost_ms, min(removed[0], self._end_ms - 1))
        if not self._skip_lost:
            raise HistoryLost(
                f"topic {self._topic!r}, slot {slot}: messages acked up to "
                f"{moment(removed[0]).isoformat()} were removed from the history before they were "
                f"archived; the archive has all before {moment(self._begin_ms).isoformat()}. "
                "Raise the limits of the history, run rmq archive more often, and continue with "
                "--skip-lost",
                slot=slot,
                removed_to=f"{removed[0]}-{removed[1]}",
            )

    def _table(self, arrow: Any, schema: Any, messages: Sequence[AckedMessage]) -> Any:
        return arrow.Table.from_pylist(list(map(self._row, messages)), schema=schema)

    def _row(self, message: AckedMessage) -> dict[str, Any]:
        row: dict[str, Any] = {
            "message_id": str(message.id), "topic": self._topic, "slot": message.slot,
            "entry": message.entry, "acked_at": message.acked_at,
        }  # fmt: skip
        try:
            fields = record.read(message.record)
        except DecodeError as error:
            return row | {"value": message.record, "unreadable": str(error)}
        row |= {
            "type": message.type, "group": message.group, "priority": message.priority,
            "merge_key": fields.merge_key or None, "headers": list(message.headers.items()),
        }  # fmt: skip
        try:
            return row | {"value": record.value_of(fields)}
        except DecodeError as error:
            if reference_of(fields.codec, fields.body) is not None and not self._skip_lost:
                raise StoreUnavailable(
                    f"message {message.id}: {error}. Set RMQ_STORES, or continue with --skip-lost"
                ) from error
            return row | {"value": fields.body, "unreadable": str(error)}


def schema_of(arrow: Any) -> Any:
    """Return the columns of the files."""
    text = arrow.string()
    return arrow.schema([
        ("message_id", text), ("topic", text), ("slot", arrow.int32()), ("entry", text),
        ("acked_at", arrow.timestamp("ms", tz="UTC")), ("value", arrow.binary()), ("type", text),
        ("group", text), ("priority", arrow.int32()), ("merge_key", text),
        ("headers", arrow.map_(text, text)), ("unreadable", text),
    ])  # fmt: skip
