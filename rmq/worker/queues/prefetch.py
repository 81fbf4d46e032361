"""Limit how many deliveries of a handler are in flight."""

from __future__ import annotations

from rmq.kernel.handlers.handler import Handler
from rmq.worker.running.work import RunTimes

IN_ORDER = 50  # messages in one ordered batch, which blocks its slot for other workers
AHEAD_S = 0.2  # longer than a round trip to a distant Redis on a busy machine
STALLED_S = 1.0  # without a begin or end of a run for this time, waiting deliveries go back


def most_in_flight(handler: Handler) -> int:
    """Return how many deliveries of a handler may be in flight at most."""
    return handler.concurrency * IN_ORDER if handler.ordered else handler.prefetch


def most_begun(handler: Handler) -> int:
    """Return how many deliveries can have begun without being settled.

    The settler can be slower than the handler, so all deliveries in flight can have begun. The
    result is larger by one, because the fetcher may prepare the claim of one more delivery.
    """
    return max(handler.concurrency * max(1, handler.batch), most_in_flight(handler)) + 1


class PrefetchLimit:
    """Limits how many deliveries of a handler are in flight.

    A delivery that waits in this worker cannot go to an idle worker. So a worker prefetches only
    deliveries that can begin within AHEAD_S seconds. The worker estimates this from the run times
    of the handler. The worker prefetches nothing until the first run has ended, and nothing while
    runs take longer than AHEAD_S seconds. If the user sets `prefetch`, this number is the only
    limit.

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
            hung: Number of handlers that still run after their `max_runtime`. These handlers use
                threads or tasks, but their deliveries are already settled.
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
        """Return whether the worker should release its waiting deliveries for other workers."""
        return not self._handler.is_prefetch_chosen and self._times.saturated_s() > STALLED_S
