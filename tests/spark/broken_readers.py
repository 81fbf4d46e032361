"""Broken variants of Spark's source, which the storm must catch, and the source that has one."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructType

import rmq
from spark_connector import offset, options
from spark_connector.offset import Numbers
from spark_connector.options import StreamOptions
from spark_connector.progress import Progress
from spark_connector.query_lease import QueryLease
from spark_connector.stream import Part, RmqStreamReader

if TYPE_CHECKING:
    from spark_connector import RmqDataSource

NAME = "rmq_storm"  # to pass to `format()`


class SettlesEarly(RmqStreamReader):
    """Settles a batch as soon as tasks read it, whatever Spark's commit log says."""

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Part]:
        parts = super().partitions(start, end)
        if parts:
            self._in_background(self._settle_early, self._open(parts[0].run), parts)
        return parts

    def _settle_early(self, lease: QueryLease, parts: list[Part]) -> None:
        for held in [held for part in parts for held in part.parts]:
            while not lease.was_read(held.topic, held.slot, held.after):
                time.sleep(0.005)
            lease.query(held.topic).settle({held.slot: held.upto})


class SettlesLogged(RmqStreamReader):
    """Settles the newest logged batch after a restart on Spark 4.0, whether it has ended or not."""

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Part]:
        if start == end:
            known = offset.read(end)
            lease = self._open(known.run)
            for topic, at in known.topics.items():
                lease.hold(topic, {})
                lease.query(topic).settle(at.slots)
        return super().partitions(start, end)


class DropsAhead(RmqStreamReader):
    """Settles what was taken ahead, as if its tasks had run."""

    def _finish_taking(self) -> dict[str, Numbers]:
        is_ahead, newest = self._taking is not None, super()._finish_taking()
        if is_ahead and self._query_lease is not None:
            for topic, numbers in newest.items():
                self._query_lease.query(topic).settle(numbers)
        return newest


class _NoLapses(Progress):
    def figures(self, lease: QueryLease) -> dict[str, int]:
        return super().figures(lease) | {"lapses": 0}


class Uncounted(RmqStreamReader):
    """Counts no lapse."""

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._progress = _NoLapses()


class EndsRenewal(RmqStreamReader):
    """Ends the renewal of all topics when one of them cannot be renewed."""

    def _open(self, run: str) -> QueryLease:
        lease = super()._open(run)
        lease._renew_topics = partial(_renew_all_or_end, lease)  # type: ignore[method-assign]
        return lease


def _renew_all_or_end(lease: QueryLease, renews_lease: bool) -> bool:
    try:
        for topic in list(lease._ours):
            lease.query(topic).keep(lease._held_slots(topic) if renews_lease else ())
    except rmq.RMQError:
        lease._stopped.set()
    return True


def source_with(broken: str) -> type[RmqDataSource]:
    from spark_connector import RmqDataSource

    variants: dict[str, type[RmqStreamReader]] = {
        "settles-early": SettlesEarly, "settles-logged": SettlesLogged,
        "drops-ahead": DropsAhead, "uncounted": Uncounted, "ends-renewal": EndsRenewal,
    }  # fmt: skip
    reader = variants.get(broken, RmqStreamReader)

    class Source(RmqDataSource):
        """The data source, with such readers. Spark 4.0 refuses to register a known name."""

        @classmethod
        def name(cls) -> str:
            return NAME

        def streamReader(self, schema: StructType) -> RmqStreamReader:
            return reader(options.stream(self.options), schema)

    return Source
