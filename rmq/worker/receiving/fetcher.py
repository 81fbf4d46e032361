"""The fetcher: one thread that receives the messages of all topics of a worker.

For each slot (part of a topic), the fetcher knows when the slot next has a message. The fetcher
learns this time from replies, from wake-ups, and from the script `next_ready`. The script checks
the slots of all topics in one command. The fetcher runs the script before it sleeps, because Redis
then sends wake-ups for the checked slots. A wake-up can get lost. So the fetcher also checks slots
every POLL_S seconds. If a worker has more than SLOTS_PER_POLL slots and wake-ups arrive, each check
covers only the next SLOTS_PER_POLL slots. If several topics have messages, the fetcher serves the
topic that has waited longest.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count

from rmq.errors import OutcomeUnknown, RMQError, Unavailable
from rmq.kernel.consumer import scripts as consumer_scripts
from rmq.kernel.consumer.cancel_requests import SIGNAL
from rmq.kernel.consumer.scripts import NEXT_READY_MAX
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.follow_ups.sweep import SWEEP_MAX_S
from rmq.kernel.topic import scripts
from rmq.kernel.transport.flow.steps import POLL_S, Flow, is_master_down, pipeline, poll_range
from rmq.kernel.transport.single.blocking import Listener, Transport
from rmq.worker.handled_topic import PAUSE_MAX_S, PAUSE_S
from rmq.worker.receiving.feed import NEVER, TopicFeed

WAIT_S = 1.0  # longest wait; each step shows the watchdog that the fetcher runs
RECEIVE_SLOTS_MAX = 64  # with more slots at the start, the fetcher checks them before it receives
CHECK_S = 0.05  # time between two checks of slots without work, in a busy fetcher
LISTEN_S = 0.02  # time between two reads of wake-ups, in a busy fetcher
COMPARE_S = 60.0  # time between two searches for messages that Redis gave back by a failover
TIDY_S = 60.0  # time in which each slot is tidied once; with many slots, one slot per second


class DueFeeds:
    """The feeds of a fetcher, sorted by the time at which each feed must receive next.

    If you schedule a feed again, its old entry stays in the heap. An entry is valid only if its
    time equals `TopicFeed.next_at`.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, TopicFeed]] = []
        self._serial = count()

    def schedule(self, feed: TopicFeed) -> None:
        """Add a feed with the time at which the feed must receive next."""
        feed.next_at = feed.due_at()
        if feed.next_at < NEVER:
            heapq.heappush(self._heap, (feed.next_at, next(self._serial), feed))

    def remove_due(self, now: float) -> tuple[TopicFeed | None, float]:
        """Remove and return the feed that has waited longest.

        Returns:
            The feed, or None if no feed must receive now, and the time at which a feed must receive
            next. The time is infinite if there is no feed.
        """
        while self._heap:
            at, _, feed = self._heap[0]
            if at == feed.next_at and at > now:
                return None, at
            heapq.heappop(self._heap)
            if at == feed.next_at:
                return feed, at
        return None, NEVER


class Fetcher:
    """The thread that receives the messages of all topics.

    Args:
        transport: Transport to Redis.
        feeds: Feeds of all topics.

    Attributes:
        last_step: Time of the thread's last step. It tells the watchdog that the thread still runs.
    """

    def __init__(self, transport: Transport, feeds: Sequence[TopicFeed]) -> None:
        self._transport = transport
        self._feeds = feeds
        self._by_channel = {feed.context.channel: feed for feed in feeds}
        for feed in feeds:
            feed.subscription.is_sharded = transport.uses_shard_channels
            feed.topic.note_freed = partial(self._note_freed, feed)
            feed.on_step = self._note_step
            # A topic whose master is away must not delay the others.
            feed.state.fails_fast = len(feeds) > 1
        self._by_own_channel: dict[bytes, TopicFeed] = {}
        self._listener = Listener(transport, list(self._by_channel))
        self._stopping = threading.Event()
        self._freed: deque[TopicFeed] = deque()  # full feeds that may have room again
        self._is_waiting = False
        self._due = DueFeeds()
        self._unchecked: dict[TopicFeed, None] = {}  # gave messages, and send no wake-ups yet
        self._checked_at = 0.0
        self._has_checked_all = False  # whether all slots were checked since the subscription
        self._was_subscribed = False
        self._next_check = 0  # next slot to check, if there are many slots
        self._poll_at = self._listened_at = time.monotonic() + LISTEN_S  # receive first
        self._tidy_at = time.monotonic() + TIDY_S
        self._compare_at = time.monotonic() + COMPARE_S
        self._tidied = 0  # number of slots tidied so far
        self.last_step = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="rmq-fetch", daemon=True)

    def start(self) -> None:
        """Start to receive messages."""
        self._note_step()  # the heartbeat may have started slowly
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to stop receiving. The call returns immediately."""
        self._stopping.set()
        for feed in self._feeds:
            feed.state.interrupted = True
        self._listener.wake()

    def join(self, wait_s: float) -> None:
        """Wait until the thread has ended, and close its connection."""
        if self._thread.ident is not None:
            self._thread.join(wait_s)
        if not self._thread.is_alive():
            self._listener.close_connection()

    def _note_freed(self, feed: TopicFeed) -> None:
        """Record that the handlers of a topic can accept deliveries again.

        You may call this method from any thread.
        """
        self._freed.append(feed)
        if self._is_waiting:
            self._listener.wake()

    def _note_step(self) -> None:
        """Tell the watchdog that this thread still runs, even if Redis answers slowly."""
        self.last_step = time.monotonic()

    def _run(self) -> None:
        pause = PAUSE_S
        slots = sum(len(feed.context.slots) for feed in self._feeds)
        for feed in self._feeds:
            if feed.context.is_open and slots > RECEIVE_SLOTS_MAX:
                feed.begin_unchecked()
            self._due.schedule(feed)
        while not self._stopping.is_set():
            self.last_step = time.monotonic()
            try:
                self._do_next()
                pause = PAUSE_S
            except Exception as error:
                for feed in self._feeds:
                    feed.error_state.note(error)
                self._stopping.wait(pause)
                pause = min(pause * 2, PAUSE_MAX_S)
        for feed in self._feeds:
            with suppress(RMQError):  # closing the feed tries again
                feed.end_credit()
            if feed.error_state.error is None:
                feed.report_lateness(is_last=True)

    def _do_next(self) -> None:
        now = time.monotonic()
        while self._freed:
            feed = self._freed.popleft()
            feed.topic.is_full = False
            self._due.schedule(feed)
        if now >= min(self._poll_at, self._listened_at + LISTEN_S):
            self._listen(0.0)
        for feed in list(self._by_own_channel.values()):
            if feed.subscription.payloads:
                self._receive(feed, feed.receive_handed_over)
        if now >= self._poll_at:
            self._poll(now)
        due, next_at = self._due.remove_due(now)
        if self._unchecked and (due is None or now >= self._checked_at + CHECK_S):
            self._check_again()
        elif due is None:
            until = min(self._poll_at, next_at, now + WAIT_S)
            self._is_waiting = True  # before `_freed` is read, so that no wake-up gets lost
            try:
                self._listen(0.0 if self._freed else max(0.0, until - time.monotonic()))
            finally:
                self._is_waiting = False
        if due is not None:
            self._receive_from(due)

    def _receive_from(self, feed: TopicFeed) -> None:
        if feed.accepts_hand_overs() and not feed.own_channel:
            self._subscribe_to_hand_overs(feed)
        self._receive(feed, feed.receive)

    def _receive(self, feed: TopicFeed, receive: Callable[[], bool]) -> None:
        """Call the function `receive` for a topic, and handle its errors.

        An error of one topic does not delay the other topics. `receive` returns whether it received
        messages. After a slot (part of the topic) has given messages, Redis sends no more wake-ups
        for this slot. So the fetcher must check the slot again.
        """
        try:
            if receive():
                self._unchecked[feed] = None
        except (Unavailable, OutcomeUnknown) as error:
            if not is_master_down(error):
                feed.next_at = 0.0
                raise
            feed.note_error(error)
        except Exception as error:
            feed.note_error(error)
        finally:
            self._due.schedule(feed)
            if feed.subscription.must_reconnect:
                self._listener.close_connection()

    # --- slots without work ----------------------------------------------------------------------

    def _poll(self, now: float) -> None:
        """Check all topics for messages, and delete expired data.

        The fetcher calls this method every POLL_S seconds.
        """
        self._poll_at = now + POLL_S
        for feed in list(self._by_own_channel.values()):
            if feed.state.credits.by_slot:
                feed.renew_credit()
                self._due.schedule(feed)
        for feed in self._feeds:
            if feed.follow_slots() or feed.topic.is_full:
                feed.topic.is_full = False
                self._due.schedule(feed)
        self._check_due_slots()
        for feed in self._feeds:
            with suppress(RMQError):  # the next renewal finds the rest
                feed.read_requests()
            feed.report_lateness()
        if now >= self._compare_at:
            self._compare_at = now + COMPARE_S
            for feed in self._feeds:
                with suppress(RMQError):  # the next search finds the rest
                    feed.release_orphans()
                self._due.schedule(feed)
        if now >= self._tidy_at:
            self._tidy_one()
        self._send_pending_follow_ups()

    def _send_pending_follow_ups(self) -> None:
        """Send the pending follow-ups of topics.

        The method stops after SWEEP_MAX_S seconds. The next poll continues.
        """
        began = now = time.monotonic()
        for feed in sorted(self._feeds, key=lambda feed: feed.state.sweep_at):
            if now < feed.state.sweep_at or now - began > SWEEP_MAX_S:
                return
            if feed.state.ready_at:
                feed.sweep()
                now = time.monotonic()

    def _check_due_slots(self) -> None:
        """Check slots (parts of topics) in which the fetcher expects no message now.

        Check all these slots, or only the next SLOTS_PER_POLL of them.
        """
        feeds = [feed for feed in self._feeds if feed.state.ready_at]
        slots = sum(len(feed.state.ready_at) for feed in feeds)
        looks = poll_range(self._next_check, slots) if self._has_checked_all else range(slots)
        self._next_check = looks.stop
        if len(looks) == slots:
            self._check(feeds)
            self._has_checked_all = self._listener.is_active
            return
        every = [(feed, index) for feed in feeds for index in range(len(feed.state.ready_at))]
        now = time.monotonic()
        due = every[looks.start : looks.stop]
        places = [(feed, index) for feed, index in due if feed.state.ready_at[index] > now]
        if places:
            self._check_slots(places)
        for feed in dict.fromkeys(feed for feed, _ in places):
            self._due.schedule(feed)

    def _check_again(self) -> None:
        """Check the slots (parts of topics) that gave messages."""
        feeds = list(self._unchecked)
        for feed in feeds:
            feed.follow_slots()
        if len(feeds) == 1 and len(feeds[0].state.ready_at) == 1:
            # A receive from a single slot has the same effect, and gets new messages as well.
            self._unchecked.clear()
            feeds[0].state.ready_at[0] = 0.0
            self._due.schedule(feeds[0])
        else:
            self._check(feeds)

    def _check(self, feeds: Sequence[TopicFeed]) -> None:
        """Ask Redis when the slots (parts) of topics next have a message."""
        now = self._checked_at = time.monotonic()
        places = [
            (feed, index)
            for feed in feeds
            for index, ready_at in enumerate(feed.state.ready_at)
            if ready_at > now
        ]
        for start in range(0, len(places), NEXT_READY_MAX):
            self._note_step()
            self._check_slots(places[start : start + NEXT_READY_MAX])
        for feed in feeds:
            self._unchecked.pop(feed, None)
            self._due.schedule(feed)

    def _check_slots(self, places: Sequence[tuple[TopicFeed, int]]) -> None:
        """Ask Redis with one command when slots (parts of topics) next have a message.

        If the master node of the slots cannot be reached, the method raises no error, because an
        error would delay all other slots. The next receive call for these slots reports the outage.
        If Redis refuses a topic, the method asks again for the other topics.
        """
        slots = [feed.context.slots[index] for feed, index in places]
        are_away = False
        try:
            reply = self._transport.run(_next_ready(slots))
        except (Unavailable, OutcomeUnknown) as error:
            if not is_master_down(error):
                raise
            reply, are_away = [0] * len(places), True
        except RMQError:
            feeds = dict.fromkeys(feed for feed, _ in places)
            if len(feeds) == 1:
                reply = [0] * len(places)  # the next receive raises the error
            else:
                for feed in feeds:
                    self._check_slots([place for place in places if place[0] is feed])
                return
        now = time.monotonic()
        for (feed, index), wait_us in zip(places, reply, strict=True):
            # -2: the topic was deleted or created again; the next receive raises the error.
            at = NEVER if wait_us == -1 else now + max(0, wait_us) / 1_000_000
            feed.state.ready_at[index] = at
            if not are_away:
                feed.error_state.clear()

    # --- wake-ups and hand-overs -----------------------------------------------------------------

    def _listen(self, seconds: float) -> None:
        """Wait for published messages, and record them.

        A feed also calls this method when it stops accepting hand-overs.
        """
        self._listened_at = time.monotonic()
        for channel, payload in self._listener.wait(seconds):
            if channel in self._by_own_channel:
                self._by_own_channel[channel].subscription.payloads.append(payload)
                continue
            feed = self._by_channel.get(channel)
            if feed is not None and payload.startswith(SIGNAL):
                feed.note_request(payload)
                continue
            with suppress(ValueError):
                slot = int(payload)
                if feed is not None and 0 <= slot < len(feed.state.ready_at):
                    feed.state.ready_at[slot] = 0.0
                    self._due.schedule(feed)
        for channel in self._listener.added.difference(self._by_own_channel, self._by_channel):
            for feed in self._feeds:
                if feed.own_channel == channel:
                    self._by_own_channel[channel] = feed
                    feed.listen(self._listen, channel)
        if self._listener.has_missed:
            # Messages that were sent before the subscription sent no wake-up.
            self._listener.has_missed = False
            self._poll_at, self._has_checked_all = 0.0, False
            if self._was_subscribed:
                self._compare_at = 0.0  # a new master may have missed acks
            self._was_subscribed = True
            for feed in self._feeds:
                feed.has_missed_requests = True
                if feed.own_channel:
                    feed.listen(self._listen, b"")
                    self._due.schedule(feed)  # hand-overs may have got lost
            self._by_own_channel.clear()

    def _subscribe_to_hand_overs(self, feed: TopicFeed) -> None:
        channel = feed.subscription.new_own_channel()
        if self._listener.add(channel):
            feed.own_channel = channel

    def _tidy_one(self) -> None:
        """Delete expired data of one slot (part of a topic).

        Each call continues with the next slot. If a slot still has expired data, the next call
        continues with the same slot.
        """
        slots = [keys for feed in self._feeds if feed.state.ready_at for keys in feed.context.slots]
        if not slots:
            return
        keys = slots[self._tidied % len(slots)]
        self._tidied += 1
        self._tidy_at = time.monotonic() + max(POLL_S, TIDY_S / len(slots))
        tidy = scripts.tidy(keys)
        tidy.fails_fast = True
        with suppress(RMQError):
            if self._transport.run(pipeline([tidy]))[0].more:
                self._tidied -= 1
                self._tidy_at = 0.0


def _next_ready(slots: Sequence[SlotKeys]) -> Flow[list[int]]:
    command = consumer_scripts.next_ready(slots, True, many_topics=True)
    command.fails_fast = True
    waits_us: list[int] = yield command
    return waits_us
