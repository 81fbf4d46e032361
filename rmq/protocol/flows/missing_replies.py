"""Settlings whose replies are missing: their consumer repeats them before its next call."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from rmq.errors import OutcomeUnknown, RMQError, Unavailable
from rmq.protocol.flows.settle import Settling
from rmq.protocol.steps import Flow, Sleep

RECHECK_S = 0.01  # between two looks at what another thread or task repeats


class _Unanswered(NamedTuple):
    settling: Settling[Any]
    note: Callable[[Any], object]  # called with the answer


class MissingReplies:
    """The settlings of one consumer that have no answer. Threads and tasks may share it.

    There are at most as many as threads and tasks that settle: each repeats those that are here
    before its own, and goes no further while that fails.

    Attributes:
        waiting: settlings to repeat.
        repeating: a token for each settling that a thread or task repeats just now.
    """

    __slots__ = ("repeating", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[_Unanswered] = deque()
        self.repeating: set[object] = set()

    def add(self, settling: Settling[Any], note: Callable[[Any], object]) -> None:
        """Keep a settling until it is answered."""
        self.waiting.append(_Unanswered(settling, note))

    def clear(self) -> None:
        """Give up all of them."""
        self.waiting.clear()

    def repeat(self) -> Flow[None]:
        """Repeat them and note the answers; wait for those that another thread or task repeats.

        Raises:
            OutcomeUnknown, Unavailable: there is still no answer; the settling is kept.
        """
        while self.waiting or self.repeating:
            token = object()
            self.repeating.add(token)
            try:
                unanswered = self.waiting.popleft()
            except IndexError:
                self.repeating.discard(token)
                if self.repeating:
                    yield Sleep(RECHECK_S)
                continue
            try:
                answer, _ = yield from unanswered.settling.try_run()
            except (OutcomeUnknown, Unavailable):
                self.waiting.appendleft(unanswered)
                raise
            except RMQError:
                pass  # refused: nothing was settled
            except BaseException:
                self.waiting.appendleft(unanswered)
                raise
            else:
                unanswered.note(answer)
            finally:
                self.repeating.discard(token)
