"""The results of all runs, and the figures that are compared with targets."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from bench.measurement import Measurement, percentile
from bench.peers.catalogue import Peer
from bench.peers.drive import Run

PART = "peers"  # part of the bench
PARTS = ("drain", "one", "paced", "due")  # parts of each peer
ONE_TARGETS = {"bullmq": 1.2, "dramatiq": 2.0, "stream": 0.65}  # messages/s, RMQ's / the peer's


class Results:
    """Runs by part, peer and round."""

    def __init__(self, peers: Sequence[Peer]) -> None:
        self.peers = {peer.name: peer for peer in peers}
        self.runs: dict[tuple[str, str], dict[int, Run]] = defaultdict(dict)
        self.skipped: dict[str, str] = {}

    def add(self, name: str, part: str, number: int, run: Run) -> None:
        """Add one run."""
        self.runs[part, name][number] = run

    def rates(self, part: str, name: str) -> list[float]:
        """Return the messages/s of each round."""
        return [run.rate for run in self.runs[part, name].values()]

    def late_ms(self, part: str, name: str, percent: float) -> list[float]:
        """Return a percentile of the lateness in each round, ms."""
        return [percentile(run.late_ms, percent) for run in self.runs[part, name].values()]

    def ratios(self, part: str, name: str, to: str) -> list[float]:
        """Return the rate of a peer divided by another's, in each round that has both."""
        ours, theirs = self.runs[part, name], self.runs[part, to]
        return [ours[n].rate / theirs[n].rate for n in ours if n in theirs]

    def of_kind(self, kind: str) -> list[str]:
        """Return the names of a kind, in the order of the catalogue."""
        return [name for name, peer in self.peers.items() if peer.kind == kind]

    def best(self, part: str) -> str | None:
        """Return the fastest Python peer, by the median of its rounds."""
        measured = [name for name in self.of_kind("python") if self.runs[part, name]]
        return max(
            measured, key=lambda name: statistics.median(self.rates(part, name)), default=None
        )


def _lateness(
    results: Results, part: str, name: str, targets: tuple[float, float]
) -> list[Measurement]:
    ours = results.peers[name].kind == "rmq"
    return [
        Measurement(
            PART, f"{name}: {part}, p{percent}", results.late_ms(part, name, percent), "ms",
            target if ours else None, at_most=True,
        )
        for percent, target in zip((50, 99), targets, strict=True)
    ]  # fmt: skip


def _beside(results: Results, part: str, name: str) -> list[Measurement]:
    """Compare RMQ's row with the peers that have a target in a part."""
    if part == "drain":
        best = results.best(part)
        targets = {best: 8.0} if best else {}
    else:
        targets = ONE_TARGETS
    return [
        Measurement(PART, f"{name}: {part}, to {peer}", ratios, target=target)
        for peer, target in targets.items()
        if (ratios := results.ratios(part, name, peer))
    ]


def measurements(results: Results, versions: Mapping[str, str] | None = None) -> list[Measurement]:
    """Return each rate and lateness with its rounds, and with its target if it has one.

    Args:
        results: Results of all runs.
        versions: Versions that peers need in addition to their packages.
    """
    figures: list[Measurement] = []
    for part in PARTS:
        for name, peer in results.peers.items():
            runs = results.runs[part, name].values()
            if not runs:
                continue
            if part in ("drain", "one"):
                target = 50_000.0 if part == "drain" and peer.kind == "rmq" else None
                notes = {
                    "kind": peer.kind,
                    "setting": peer.setting,
                    "durable": peer.durable,
                    "requires": list(peer.requires),
                    "messages": max(run.count for run in runs),
                    "worker CPU us/message": [run.cpu_us for run in runs],
                    "ms from last handled to all acked": [run.acked_ms for run in runs],
                }
                if part == "one":
                    notes["messages/s sent"] = [run.sent_rate for run in runs]
                rates = results.rates(part, name)
                figures.append(
                    Measurement(PART, f"{name}: {part}", rates, "messages/s", target, notes=notes)
                )
                if peer.kind == "rmq":
                    figures += _beside(results, part, name)
            else:
                targets = (0.5, 2.0) if part == "paced" else (1.0, 10.0)
                figures += _lateness(results, part, name, targets)
            if part == "due":
                early = [float(sum(ms < 0 for ms in run.late_ms)) for run in runs]
                figures.append(
                    Measurement(PART, f"{name}: early", early, "messages", 0, at_most=True)
                )
    if figures:
        figures[0].notes["skipped"] = results.skipped
        figures[0].notes["versions"] = dict(versions or {})
    return figures
