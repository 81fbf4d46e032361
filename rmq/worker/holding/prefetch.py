"""Limit how many deliveries of a handler are in flight. This also limits the prefetch."""

from __future__ import annotations

from rmq.kernel.handlers.handler import Handler
from rmq.worker.running.work import RunTimes

IN_ORDER = 50  # messages in one ordered batch, which blocks its slot for other workers
AHEAD_S = 0.2  # longer than a round trip to a distant Redis on a busy machine
STALLED_S = 1.0  # without a begin or end of a run for this time, waiting deliveries go back


def most_in_flight(handler: Handler) -> int:
    """Return the maximum number of deliveries of a handler that may be in flight."""
    return handler.concurrency * IN_ORDER if handler.ordered else handler.prefetch


def most_begun(handler: Handler) -> int:
    """Return the maximum number of deliveries that have begun and are not settled yet.

    If the settler is slower than the handler, all deliveries in flight may have begun. The result
    is one larger, because the fetcher may prepare a claim for one more delivery.
    """
    return max(handler.concurrency * max(1, handler.batch), most_in_flight(handler)) + 1


class PrefetchLimit:
    """Limits how many deliveries of a handler are in flight, by the handler's run times.

    A delivery that waits in a worker cannot go to another worker, which may be idle. So a worker
    prefetches only deliveries that its threads or tasks can begin within AHEAD_S. It prefetches
    nothing before the first run has ended, or while runs take longer than AHEAD_S. If the user has
    set `prefetch`, this number is the limit, regardless of run times.

    Args:
        handler: The handler.
        times: Run times of the handler.
    """

    def __init__(self, handler: Handler, times: RunTimes) -> None:
        self._handler = handler
        self._times = times

    def in_flight_limit(self, hung: int = 0) -> int:
        """Return how many deliveries may be in flight now, including running deliveries.

        Args:
            hung: Number of runs that hang beyond their `max_runtime`. Such a run uses a thread or
                task, but its delivery is already settled.
        """
        handler, mean = self._handler, self._times.mean
        concurrency, batch = handler.concurrency - hung, max(1, handler.batch)
        if concurrency <= 0:
            return 0
        if handler.is_prefetch_chosen:
            return max(1, handler.prefetch - hung * batch)
        prefetch, ahead = handler.prefetch, 0
        if mean >= 0:
            between = max(mean / concurrency, self._times.saturated_s())
            ahead = int(min(AHEAD_S / between, prefetch)) if between > 0 else prefetch
        return min(prefetch, batch * (concurrency + ahead))

    def is_stalled(self) -> bool:
        """Return whether waiting deliveries should be released for other workers."""
        return not self._handler.is_prefetch_chosen and self._times.saturated_s() > STALLED_S
