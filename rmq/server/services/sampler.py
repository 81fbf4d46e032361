"""Keep samples of the figures of all topics, for `Admin.history`, the console and `rmq top`."""

from __future__ import annotations

import logging

from rmq.core import history
from rmq.core.history import Figures
from rmq.protocol.flows import history as history_flow
from rmq.server.survey import Survey, TopicCounts
from rmq.transport import Transport

log = logging.getLogger("rmq")

EVERY_S = 10.0


class Sampler:
    """Writes what the survey read, where that has changed.

    A topic in which nothing happens costs one command in ten minutes. When its figures change, the
    look before is written with them, so that the growth is not spread over these minutes. Where
    the servers stop, the history has a gap, once it is longer than that.
    """

    name = "sampler"
    every_s = EVERY_S
    needs_leadership = True

    def __init__(self, transport: Transport, survey: Survey) -> None:
        self._transport = transport
        self._survey = survey
        # By topic: its stamp, the newest figures that were written, and when any were.
        self._written: dict[str, tuple[bytes, Figures, int]] = {}
        self._unwritten: dict[str, Figures] = {}  # newer ones that are equal

    def run_once(self) -> int:
        """Keep what has changed; return how many samples."""
        topics, kept = self._survey.topics, 0
        self._written = {name: each for name, each in self._written.items() if name in topics}
        self._unwritten = {name: each for name, each in self._unwritten.items() if name in topics}
        for name, counts in topics.items():
            figures, created = _figures(counts), counts.context.identity
            stamp, before, written_ms = self._written.get(name, (b"", None, 0))
            is_same = stamp == created and before is not None and before.content == figures.content
            if is_same and figures.at_ms - written_ms < history.SAME_MS:
                self._unwritten[name] = figures
                continue
            look_before = self._unwritten.get(name)
            looks = [figures]
            if look_before is not None and stamp == created and not is_same:
                looks = [look_before, figures]
            # Equal figures are for the ring that goes back farthest alone: all points read it.
            rings = history.RINGS[-1:] if is_same else history.RINGS
            if self._transport.run(history_flow.sample(counts.context, looks, rings)):
                self._written[name] = (created, figures, figures.at_ms)
                self._unwritten.pop(name, None)
                kept += 1
            else:
                log.debug("topic %r: deleted meanwhile", name)
        return kept


def _figures(counts: TopicCounts) -> Figures:
    return history.figures_of(counts.total, counts.lateness)
