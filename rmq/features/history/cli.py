"""The command `rmq archive`, which writes acked messages as Parquet files."""

from __future__ import annotations

import click

from rmq.cli_framework import text
from rmq.cli_framework.app import ERROR, PARTLY, Command, Failed
from rmq.cli_framework.confirm import progress
from rmq.cli_framework.options import common_options
from rmq.cli_framework.param_types import DURATION
from rmq.features.history import archive as archiving


@click.command(
    cls=Command,
    examples=(
        "rmq archive orders --to s3://lake/orders",
        "rmq archive orders --to /srv/archive/orders --every 15m",
        "rmq archive orders --to gs://lake/orders --skip-lost --json",
    ),
)
@click.argument("topic")
@click.option("--to", "folder", metavar="URL", required=True, help="Folder, or URL of a bucket.")
@click.option(
    "--every", type=DURATION, default="1h", show_default=True, help="Time in one file, by acks."
)
@click.option("--skip-lost", is_flag=True, help="Continue if messages or bodies were lost.")
def archive(topic: str, folder: str, every: float, skip_lost: bool) -> None:
    """Write the history of TOPIC as Parquet files, in folders by day of the ack.

    The command writes the hours that have ended since its last run, and exits. So run it from cron.
    A file has the messages of one hour (--every). The command can write the file a minute after the
    end of this hour. Each message is written once, even if a run is killed and repeated. Always
    give the same --every for a folder.

    If the history removed messages before the command could archive them, the command fails. With
    --skip-lost, the command continues, and its exit code is then 4.
    """
    common = common_options()
    with common.client() as client, progress("archiving", "run it again to continue") as show:
        now_ms = client.admin.stats(topic)["now_ms"]
        try:
            done = archiving.archive(
                client.topic(topic).history, topic, folder, now_ms, every_ms=round(every * 1000),
                skip_lost=skip_lost, progress=show,
            )  # fmt: skip
        except OSError as error:
            raise Failed(f"{folder}: {error}; run the command again to continue", ERROR) from error
    record = {
        "topic": topic, "to": folder, "files": done.files, "messages": done.messages,
        "upto": text.iso(done.upto), "lost_to": text.iso(done.lost_to),
    }  # fmt: skip
    counted = f"{text.plural(done.messages, 'message')} in {text.plural(done.files, 'file')}"
    common.report(record, f"{topic}: {counted}; archived up to {text.fine_clock(done.upto)}")
    if done.lost_to:
        clock = text.fine_clock(done.lost_to)
        raise Failed(f"messages acked up to {clock} were lost before they were archived", PARTLY)
