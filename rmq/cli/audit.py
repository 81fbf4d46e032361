"""`rmq audit`: was anything lost of what producers with `rmq.Audit` have sent?"""

from __future__ import annotations

from typing import Any

import click

import rmq
from rmq.cli import output
from rmq.cli.app import Failed, Leaf, session
from rmq.cli.confirm import progress
from rmq.cli.output import Column
from rmq.cli.param_types import DURATION

FIGURES = (
    "producers", "numbered", "seen", "accounted", "waiting", "in_flight", "dead", "missing",
)  # fmt: skip
SHOWN = 20  # ranges of missing numbers in a table; --json has all


@click.command(
    cls=Leaf,
    examples=(
        "rmq audit",
        "rmq audit orders --older-than 5m",
        "rmq audit orders --forget",
    ),
)
@click.argument("topic", required=False)
@click.option(
    "--older-than",
    type=DURATION,
    default="60s",
    show_default=True,
    help="Only what was accepted so long ago.",
)
@click.option("--forget", is_flag=True, help="Report what is missing of TOPIC once more, then not.")
def audit(topic: str | None, older_than: float, forget: bool) -> None:
    """Tell whether messages of TOPIC, or of any topic, were lost.

    Producers whose clients have rmq.Audit number what they send. A number is missing when its
    message was accepted, is in no queue, and was not settled or removed by RMQ. SEEN were acked;
    ACCOUNTED were merged, cancelled, purged, expired or dropped. Exit code 1 where any is missing.
    """
    if forget and topic is None:
        raise click.UsageError("--forget: name the TOPIC")
    here = session()
    with here.client() as client:
        names = client.admin.topics() if topic is None else [topic]
        found, broken = [], {}
        for name in names:
            try:
                with progress(f"auditing {name}") as moved:
                    found.append(
                        client.admin.audit(
                            name, older_than=older_than, forget=forget, progress=moved
                        )
                    )
            except (rmq.Unavailable, rmq.OutcomeUnknown):
                raise
            except rmq.RMQError as error:
                if topic is not None:
                    raise
                broken[name] = str(error)  # the others are looked at all the same
    if here.json:
        told = [_fields(one) for one in found]
        told += [{"topic": name, "error": text} for name, text in broken.items()]
        output.document(told if topic is None else told[0])
    elif found:
        _print(found, topic is None)
    missing = sum(one.missing for one in found)
    troubles = [f"{name}: {text}" for name, text in broken.items()]
    if missing:
        where = ", ".join(one.topic for one in found if one.missing)
        done = "; they are forgotten now" if forget else ""
        troubles.insert(0, f"{output.plural(missing, 'message')} of {where} missing{done}")
    if troubles:
        raise Failed("; ".join(troubles), kind="Missing" if missing else "Failed")


def _fields(one: rmq.Audited) -> dict[str, Any]:
    return one._asdict() | {"lost": [lost._asdict() for lost in one.lost]}


def _print(found: list[rmq.Audited], every: bool) -> None:
    here = session()
    shown = [one for one in found if one.producers or one.numbered or not every]
    if not shown:
        here.talk("no topic is audited; give producers rmq.Client(interceptors=[rmq.Audit()])")
        return
    titles = [name.upper().replace("_", "-") for name in FIGURES]
    output.table(
        [Column("TOPIC"), *(Column(title, right=True) for title in titles)],
        [[one.topic, *(output.number(getattr(one, name)) for name in FIGURES)] for one in shown],
    )
    lost = [(one.topic, part) for one in shown for part in one.lost]
    if lost:
        click.echo()
        output.table(
            [Column("TOPIC"), Column("SLOT", right=True), Column("PRODUCER"), Column("NUMBERS")],
            [
                [topic, str(part.slot), part.producer, _numbers(part)]
                for topic, part in lost[:SHOWN]
            ],
        )
    if len(lost) > SHOWN:
        here.talk(f"{SHOWN} of {output.number(len(lost))} ranges; --json shows more")
    if not every and not shown[0].producers and not shown[0].numbered:
        here.talk(f"{shown[0].topic}: nobody has numbered messages; see rmq.Audit")


def _numbers(part: rmq.Missing) -> str:
    return str(part.first) if part.first == part.last else f"{part.first}-{part.last}"
