"""`rmq explain`: print the meaning of an error from the page about errors."""

from __future__ import annotations

import re

import click

from rmq.cli_framework.app import Command
from rmq.cli_framework.options import common_options
from rmq.cli_framework.tables import Column
from rmq.errors import PAGE
from rmq.kernel.core.packages import page
from rmq.kernel.core.validation import nearest

WIDTH = 100
_LINK = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")


def sections() -> dict[str, str]:
    """Return the explanation of each exception, by the name of its class.

    Raises:
        ConfigurationError: The page about errors is not installed.
    """
    parts = re.split(r"^### ", page(PAGE), flags=re.M)[1:]
    pairs = (re.split(r"^## ", part, maxsplit=1, flags=re.M)[0].partition("\n") for part in parts)
    return {name: text.strip() for name, _, text in pairs}


def _plain(text: str) -> str:
    text = _LINK.sub(lambda link: link[1] if link[2][0] == "#" else f"{link[1]} ({link[2]})", text)
    text = re.sub(r"\n +(?=\S)", " ", text.replace("**", ""))
    return "\n\n".join(
        "\n".join(
            click.wrap_text(line, WIDTH, subsequent_indent="  " if line.startswith("- ") else "")
            for line in re.sub(r"\n(?!- )", " ", paragraph).split("\n")
        )
        for paragraph in text.split("\n\n")
    )


def _first_sentence(text: str) -> str:
    return _LINK.sub(r"\1", re.split(r"(?<=\.)\s", text)[0])


@click.command(cls=Command, examples=("rmq explain", "rmq explain LeaseLost"))
@click.argument("name", required=False)
def explain(name: str | None) -> None:
    """Explain the error NAME: what happened, what is lost, what to do.

    Without a NAME, list all errors.
    """
    common, known = common_options(), sections()
    if name is None:
        rows = [(each, _first_sentence(text)) for each, text in known.items()]
        records = [{"name": each, "text": text} for each, text in known.items()]
        columns = [Column("NAME"), Column("MEANS", cut=True)]
        common.listing(records, columns, rows, "no errors")
        return
    found = {each.lower(): each for each in known}.get(name.lower())
    if found is None:
        raise click.UsageError(f"there is no error {name!r}{nearest(name, list(known))}")
    common.report({"name": found, "text": known[found]}, f"{found}\n\n{_plain(known[found])}")
