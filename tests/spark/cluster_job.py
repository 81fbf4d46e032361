"""A job for spark-submit that copies a topic on a cluster; it needs nothing but RMQ and Spark.

    spark-submit cluster_job.py URL FROM TO CHECKPOINT DIRECTORY PAUSE_S

Each row of the copy says which executor had it, and where its RMQ came from. DIRECTORY gets a line
for each row that a task has begun, in a file for each attempt: a task waits PAUSE_S at each row, so
that it can be killed in the middle.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql import SparkSession, functions as F


def main(url: str, source: str, target: str, checkpoint: str, directory: str, pause: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    import spark_connector

    spark.dataSource.register(spark_connector.RmqDataSource)

    @F.udf("string")
    def handled(value: bytes) -> str:
        import spark_connector

        task = TaskContext.get()
        assert task is not None
        daemon = Path(f"/proc/{os.getppid()}/stat").read_text()
        executor = int(daemon.rpartition(")")[2].split()[1])  # the parent of the parent
        number = int(value)
        name = f"{task.partitionId()}-{task.taskAttemptId()}-{executor}-{os.getpid()}"
        with Path(directory, name).open("a") as rows:
            rows.write(f"{number}\n")
        time.sleep(float(pause))
        home = spark_connector.__file__
        return json.dumps({"number": number, "executor": executor, "home": home})

    query = (
        spark.readStream.format("rmq")
        .options(url=url, subscribe=source, maxMessagesPerTrigger="100", ownerLeaseSeconds="2")
        .load()
        .select(handled("value").alias("value"))
        .writeStream.format("rmq")
        .options(url=url, topic=target, codec="json", checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
