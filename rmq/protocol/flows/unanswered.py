"""Settlings whose replies have not come: their consumer repeats them before its next call."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from rmq.errors import OutcomeUnknown, RMQError, Unavailable
from rmq.protocol.flows.settle import Settling
from rmq.protocol.steps import Flow, Sleep

BESIDE_S = 0.01  # between two looks at what another thread or task repeats


class _One(NamedTuple):
    settling: Settling[Any]
    note: Callable[[Any], object]  # takes note of the answer


class Unanswered:
    """The settlings of one consumer that have no answer. Threads and tasks may share it.

    There are at most as many as threads and tasks settle at a time: each repeats what is here
    before it does anything of its own, and goes no further while that fails.
    """

    def __init__(self) -> None:
        self._kept: deque[_One] = deque()
        self._repeating: set[object] = set()

    def add(self, settling: Settling[Any], note: Callable[[Any], object]) -> None:
        """Keep a settling until it is answered."""
        self._kept.append(_One(settling, note))

    def clear(self) -> None:
        """Give up all of them."""
        self._kept.clear()

    def repeat(self) -> Flow[None]:
        """Repeat them, and note the answers; wait for those that another thread or task repeats.

        Raises:
            OutcomeUnknown, Unavailable: there is still no answer; it is kept.
        """
        while self._kept or self._repeating:
            me = object()
            self._repeating.add(me)
            try:
                one = self._kept.popleft()
            except IndexError:
                self._repeating.discard(me)
                if self._repeating:
                    yield Sleep(BESIDE_S)
                continue
            try:
                answer, _ = yield from one.settling.ask()
            except (OutcomeUnknown, Unavailable):
                self._kept.appendleft(one)
                raise
            except RMQError:
                pass  # refused: nothing was settled
            except BaseException:
                self._kept.appendleft(one)
                raise
            else:
                one.note(answer)
            finally:
                self._repeating.discard(me)
