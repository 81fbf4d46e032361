"""A driver with a JVM of its own that copies a topic; started by test_copy.py.

    python -m tests.spark.copy_driver URL FROM TO CHECKPOINT SINK TRIGGER MOST OWNER_S

SINK is `rmq`; or `naive`, which sends what a batch brings without a word of which batch it is; or
`files`, which writes the numbers of each batch into a file beside the checkpoint, TO being the
name of this run. TRIGGER is `now`, which ends by itself, or `default`.
The error that ends the query is the last thing it prints; its exit code is then 3.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

import rmq
from spark_connector import RmqDataSource
from tests.spark.driver import GROUP, POINT, die_at

REFUSED = 3


def main(
    url: str, source: str, target: str, checkpoint: str, sink: str, trigger: str, most: str,
    owner_s: str,
) -> int:  # fmt: skip
    os.setsid()
    os.environ[GROUP] = str(os.getpgid(0))
    os.environ.setdefault(POINT, "end")
    from tests.spark.conftest import environment, session

    os.environ.update(environment())
    spark = session("local[2]")
    spark.dataSource.register(RmqDataSource)
    asked = {
        "url": url, "subscribe": source, "maxMessagesPerTrigger": most,
        "ownerLeaseSeconds": owner_s,
    }  # fmt: skip
    frame = spark.readStream.format("rmq").options(**asked).load().select("value")

    def naive(df: DataFrame, batch: int) -> None:
        rows = [rmq.Outgoing(int(bytes(row.value))) for row in df.collect()]
        with rmq.Client(url) as client:
            client.topic(target).send_many(rows)
        if rows:
            die_at("sunk")

    def files(df: DataFrame, batch: int) -> None:
        numbers = [int(bytes(row.value)) for row in df.collect()]
        done = Path(checkpoint).parent / f"{target}-{batch}.json"
        done.with_suffix(".part").write_text(json.dumps(numbers))
        done.with_suffix(".part").replace(done)

    write = frame.writeStream.option("checkpointLocation", checkpoint)
    if sink == "rmq":
        write = write.format("rmq").options(url=url, topic=target)
    else:
        write = write.foreachBatch(naive if sink == "naive" else files)
    how: dict[str, Any] = {"availableNow": True} if trigger == "now" else {}
    query = (write.trigger(**how) if how else write).start()
    try:
        query.awaitTermination()
    except Exception as error:
        print(error)
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
