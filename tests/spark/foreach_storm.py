"""The storm of tests/spark/storm.py around two queries of `spark_connector.read_stream`.

    python -m tests.spark.foreach_storm [--kills 16] [--seed 1] [--broken VARIANT]

One query reads the topic a, and the other one reads b and two empty topics. Each writes a file for
each batch. It runs on Spark 3.5 and later, and needs pandas. The kill of a driver leaves its JVM.

Variants that are wrong on purpose: `settles-early` and `drops-ahead` as in the storm, and
`settles-planned`, which settles the newest plan after a restart, even if its batch has not ended.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame

import spark_connector
from spark_connector import foreach_batch
from tests.spark.broken_readers import DropsAhead, SettlesEarly
from tests.spark.conftest import environment, session
from tests.spark.storm import COPIES, MOST, CheckpointRefused, Storm

BROKEN = ("settles-early", "drops-ahead", "settles-planned")


class HelperStorm(Storm):
    """A storm with drivers of this module."""

    KINDS = ("jvm", "driver", "worker", "group", "redis")
    MODULE = "tests.spark.foreach_storm"


class SettlesPlanned(foreach_batch.Plans):
    """Takes the newest plan for the plan of an earlier batch."""

    def __init__(self, *given: object) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        if self.newest is not None:
            self.newest = self.newest._replace(batch=-1)


def break_it(broken: str) -> None:
    """Replace a part of the helper by a variant that is wrong on purpose."""
    helper = foreach_batch.Reader
    if broken == "settles-planned":
        foreach_batch.Plans = SettlesPlanned  # type: ignore[assignment,misc]
    elif broken:
        variant = {"settles-early": SettlesEarly, "drops-ahead": DropsAhead}[broken]
        foreach_batch.Reader = type("Broken", (variant, helper), {})  # type: ignore[assignment,misc]


def drive(url: str, home: Path, lease_s: str, loss: str, broken: str, master: str) -> None:
    """Run both queries until one of them fails."""
    os.environ.update(environment())
    spark = session(master)
    break_it(broken)

    def keep(place: int) -> Callable[[DataFrame, int], None]:
        def function(rows: DataFrame, batch: int) -> None:
            values = sorted(
                json.dumps({"n": int(row.value), "first": 1, "second": row.attempt})
                for row in rows.select("value", "attempt").collect()
            )
            path = home / "batches" / str(2 * batch + place)
            if path.exists():
                if loss == "fail" and json.loads(path.read_text()) != values:
                    (home / "differs").touch()
                if broken != "settles-early":
                    values = sorted({*values, *json.loads(path.read_text())})
            path.with_suffix(".new").write_text(json.dumps(values))
            path.with_suffix(".new").rename(path)

        return function

    options = {
        "url": url, "maxMessagesPerTrigger": MOST, "leaseSeconds": lease_s,
        "ownerLeaseSeconds": 1, "onClaimLoss": loss, "rowsPerTask": 100,
    }  # fmt: skip
    queries = [
        spark_connector.read_stream(spark, options | {"subscribe": topics}).foreach_batch(
            keep(place), str(home / "checkpoints" / str(place))
        )
        for place, topics in enumerate(("a", ",".join(("b", *COPIES))))
    ]
    try:
        while all(query.isActive for query in queries):
            time.sleep(0.2)
        print(*(query.exception() for query in queries if not query.isActive), flush=True)
    finally:
        os._exit(1)


def storm(
    home: Path, *, kills: int, seed: int, broken: str = "", tell: Callable[[str], object] = print
) -> object:
    """Play one storm."""
    return HelperStorm(home, kills, seed, "", 600.0, broken).play(tell)


def main() -> None:
    """Play one, and exit with 1 if its check fails; a broken variant has to fail."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--broken", choices=BROKEN, default="")
    parser.add_argument("--home", type=Path, help="where files and logs go")
    parser.add_argument("--driver", nargs=6, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.driver:
        url, home, lease_s, loss, broken, master = given.driver
        drive(url, Path(home), lease_s, loss, broken, master)
    home = given.home or Path(tempfile.mkdtemp(prefix="rmq-storm-"))
    try:
        outcome = HelperStorm(home, given.kills, given.seed, "", 600.0, given.broken).play()
    except CheckpointRefused as error:
        print(error)
        sys.exit(not given.broken)
    print(outcome)
    sys.exit(outcome.is_exact == bool(given.broken))


if __name__ == "__main__":
    main()
