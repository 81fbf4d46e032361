"""The options of the part `cost`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection
from pathlib import Path

from bench.cost.lives import KINDS, VERBS
from bench.cost.trials import CALLS, DEPTH, MEMORY, Selection


def _one_of(known: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    """Return a parser of a comma-separated list."""

    def read(text: str) -> tuple[str, ...]:
        names = tuple(name.strip() for name in text.split(","))
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r}; there are: {', '.join(known)}")
        return names

    return read


def _batches(text: str) -> tuple[int, ...]:
    try:
        ks = tuple(int(word) for word in text.split(","))
    except ValueError:
        ks = ()
    if not ks or not all(1 <= k <= 1000 for k in ks):
        raise argparse.ArgumentTypeError("give numbers from 1 to 1000, with commas")
    return ks


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options to a parser. Lists have commas; an omitted option means everything."""
    group = parser.add_argument_group("of the part cost; a list has commas")
    verbs = (*VERBS, MEMORY)
    group.add_argument("--verb", type=_one_of(verbs), help=", ".join(verbs))
    group.add_argument("--kind", type=_one_of(KINDS), help=", ".join(KINDS))
    group.add_argument("--k", type=_batches, help="messages of a call, default 1,10,100,1000")
    group.add_argument("--depth", type=int, help=f"messages for memory, default {DEPTH}")
    group.add_argument(
        "--compare", type=Path, metavar="FILE", help="print ratios to a file that --json wrote"
    )


def selection(options: argparse.Namespace) -> Selection:
    """Return the selection that the options describe."""
    return Selection(
        verbs=options.verb or (*VERBS, MEMORY),
        kinds=options.kind or KINDS,
        ks=options.k or tuple(CALLS),
        depth=options.depth or DEPTH,
    )


def given(options: argparse.Namespace) -> list[str]:
    """Return the names of the options that were given."""
    names = ("verb", "kind", "k", "depth", "compare")
    return [f"--{name}" for name in names if getattr(options, name) is not None]
