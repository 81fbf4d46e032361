# Generated from rmq/features/topic_admin/admin.py: change that, then run `make fmt`.
"""The blocking classes of `rmq.features.topic_admin.admin`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Unpack

from rmq.features.topic_admin import flows, history, resize
from rmq.features.topic_admin.flows import DeleteResult
from rmq.features.topic_admin.resize import ResizeResult
from rmq.kernel.core.history import Sample
from rmq.kernel.core.pause import Pause, PauseVerb, acting_user, check_text, verbs_of
from rmq.kernel.core.settings import Settings, TopicSettings, check_changes
from rmq.kernel.core.validation import Duration
from rmq.kernel.topic import overview, stats
from rmq.kernel.topic.admin_part import AdminPart
from rmq.kernel.topic.stats import STEPS, DueCount
from rmq.kernel.transport.flow.steps import Progress


class TopicAdmin(AdminPart):
    """Lists, changes, pauses, resizes and deletes topics. Reads their message counts."""

    def topics(self) -> list[str]:
        """Return the sorted names of all topics."""
        return self._run(overview.topics(self._prefix))

    def settings(self, topic: str) -> Settings:
        """Return the settings of a topic, or raise TopicNotFound."""
        return self._run(flows.topic_settings(self._context(topic)))

    def topic_set(
        self,
        topic: str,
        *,
        unless_changed: Settings | None = None,
        **settings: Unpack[TopicSettings],
    ) -> Settings:
        """Change settings of a topic while it is in use. Return all its settings.

        Redis uses the new settings immediately, also for waiting messages. Clients that use the
        topic follow a change of `default_priority`, `max_body`, `expires`, `durability` and
        `overflow` within 30 s. A running consumer or worker keeps its `lease`. Also change the code
        of your programs. A program that opens the topic with another value gets SettingsMismatch.

        Args:
            topic: Name of the topic.
            unless_changed: Settings that `settings` has returned. If the topic was changed, paused
                or resumed since then, the call changes nothing.
            settings: Settings as in `Client.topic`. You cannot change `slots` and `groups`.

        Guarantee:
            After an interruption, some slots (parts of the topic) have the old settings, until you
            repeat this call or any program opens the topic. If two callers change a setting, the
            later value remains, unless they pass `unless_changed`.

        Raises:
            InvalidValue, InvalidType: A setting cannot be changed, or the new value is not valid.
            SettingsMismatch: The topic differs from `unless_changed`.
            TopicNotFound: The topic does not exist.
        """
        asked = check_changes(settings)
        return self._run(flows.topic_set(self._context(topic), asked, unless_changed))

    def topic_pause(
        self, topic: str, *, verb: PauseVerb = "receive", by: str | None = None, why: str = ""
    ) -> Pause:
        """Stop every delivery of a topic, or every send to it, until `topic_resume`.

        With "receive", consumers, workers and queries of all programs receive nothing and wait. You
        can still settle messages in flight. Messages that fail, or whose lease expires, wait again.

        With "send", calls that add a message (sends, merges, `publish`) raise TopicPaused.
        Schedules do not send. After the pause, their `catch_up` decides about missed times. The
        relay of an outbox waits. Retries, rollbacks, staging, and redrives of the topic's own dead
        letters continue.

        Redis stores the pause. If the topic is already paused, it keeps its first pause. The call
        returns the pause. With "both", the call returns the pause of deliveries.

        Args:
            topic: Name of the topic.
            verb: "receive", "send" or "both".
            by: Name of the person who pauses the topic, for display. Default: user@host.
            why: Reason of the pause, for display.

        Guarantee:
            After this call returns, RMQ delivers no message ("receive"), or accepts no send
            ("send"). If the call is interrupted, some slots (parts of the topic) are not paused,
            until you repeat the call or any program opens the topic.

        Raises:
            TopicNotFound: The topic does not exist.
            InvalidValue: The verb is unknown, or `by` or `why` is longer than 500 characters or has
                several lines.
        """
        verbs = verbs_of(verb)
        by, why = acting_user(by), check_text(why, "why")
        return self._run(flows.topic_pause(self._context(topic), by, why, verbs))

    def topic_resume(self, topic: str, *, verb: PauseVerb = "both") -> Pause | None:
        """End pauses of a topic, and wake its consumers. Return the former pause, or None.

        Args:
            topic: Name of the topic.
            verb: "receive", "send" or "both".

        Raises:
            TopicNotFound: The topic does not exist.
        """
        return self._run(flows.topic_resume(self._context(topic), verbs_of(verb)))

    def topic_resize(
        self,
        topic: str,
        slots: int,
        *,
        dry_run: bool = False,
        wait: bool = True,
        progress: Progress | None = None,
    ) -> ResizeResult:
        """Change the number of slots (parts) of a topic while it is in use. Return the progress.

        Messages stay in their slots with their ids. The new number of slots decides to which slot a
        new message goes. Older messages with the same `slot_basis` may be in another slot. The new
        message then waits until the older messages are settled or dead. This call waits for the
        older messages. If the call is interrupted, repeat it, or let a server (`rmq server`) finish
        the resize.

        Args:
            topic: Name of the topic.
            slots: New number of slots, a multiple or a divisor of the present number, 1 to 1024.
            dry_run: Whether to only check the request, and count the messages that newer messages
                would wait for.
            wait: Whether to wait for older messages. If False, a server or a later call finishes
                the resize.
            progress: Function that RMQ calls as `progress(done, all)` during the work, with two
                numbers of slots.

        Guarantee:
            No message is lost or stored twice. Messages with the same `slot_basis` stay in order:
            RMQ does not deliver a message that is sent after the resize before an earlier message
            that is due. There are two exceptions. New messages do not wait for delayed messages.
            For messages with your own id or a dedup key, and for merge keys and claims, RMQ always
            uses the topic's first number of slots.

        Raises:
            InvalidValue: The number of slots is not allowed, or the topic has a limit or is
                audited. The topic was not changed.
            TopicNotFound: The topic does not exist.
        """
        context = self._context(topic)
        return self._run(resize.topic_resize(context, slots, dry_run, wait, progress))

    def topic_delete(
        self,
        topic: str,
        *,
        force: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> DeleteResult:
        """Delete a topic permanently, with everything in it. Return its message counts.

        Producers and consumers that have opened the topic get TopicVanished. If you create a topic
        with the same name, they must open it again.

        Args:
            topic: Name of the topic.
            force: Whether to delete the topic even if it contains messages, or has batches that are
                not done.
            dry_run: Whether to only count the messages.
            progress: Function that RMQ calls as `progress(done, all)` during the work, with two
                numbers of slots.

        Guarantee:
            Without `force`, the call deletes nothing if the topic contains a message. Sends raise
            TopicPaused while the call checks all slots (parts of the topic). A slot is deleted
            completely or not at all. If the call is interrupted, repeat it. Until then, either no
            client can open the topic, or sends are paused (by "topic_delete"). You can also resume
            the sends.

        Raises:
            TopicNotEmpty: `force` is not set, and the topic contains messages or has batches that
                are not done. Also raised if objects in a store belong to the topic. No message was
                deleted.
            TopicNotFound: The topic does not exist.
        """
        return self._run(flows.topic_delete(self._context(topic), force, dry_run, progress))

    def stats(self, topic: str) -> dict[str, int]:
        """Return the message counts of a topic over all slots.

        `lua/topic/stats.lua` lists their names.
        """
        return self._run(stats.stats(self._context(topic)))

    def stats_by_slot(self, topic: str) -> list[dict[str, int]]:
        """Return the message counts of each slot (part) of a topic, named as in `stats`."""
        return self._run(stats.stats_by_slot(self._context(topic)))

    def due_counts(self, topic: str, *, steps: Sequence[Duration] = STEPS) -> list[DueCount]:
        """Count the messages of a topic that are due now, or become due within certain times.

        The counts include messages with a due time: delayed messages, messages that wait for other
        messages to merge with, and waiting retries. A message that is already due also counts, for
        example if a pause holds it back. The counts do not include messages without a due time:
        immediate messages, immediate retries, and held messages of groups.

        Args:
            topic: Name of the topic.
            steps: Times from now, 1 to 60 ascending numbers in seconds or timedeltas. 0 means now.
                Default: now, 1, 5 and 15 minutes, 1 and 6 hours, 1 and 7 days.

        Returns:
            A pair (within_s, messages) for each step. The last pair has within_s None and counts
            all later messages. Each message counts once, in the first pair that fits.

        Guarantee:
            The counts of one slot (part) of the topic are from the same moment. RMQ reads one slot
            after another.

        Raises:
            TopicNotFound: The topic does not exist.
            InvalidValue, InvalidType: The steps are not valid.
        """
        return self._run(stats.due_counts(self._context(topic), steps))

    def samples(
        self,
        topic: str,
        *,
        since: Duration | datetime = history.SINCE,
        step: Duration | None = None,
    ) -> list[Sample]:
        """Return the counts, rates and lateness of a topic over time, oldest first.

        `rmq server` stores these figures.

        Args:
            topic: Name of the topic.
            since: Start of the period: seconds or a timedelta before now, or an aware datetime. RMQ
                keeps a sample every 10 s for an hour, every minute for a day, and every ten minutes
                for a week.
            step: Time between two samples, in seconds or as a timedelta, a multiple of 10 s.
                Default: 10 s for up to an hour, a minute for up to a day, ten minutes for up to a
                week.

        Guarantee:
            The figures of a sample are from the last reading at or before its time `at`. Rates
            count every event. For a topic in use, the newest rates are None until a server reads
            the topic again. If no server has read the topic for more than twelve minutes, samples
            are missing.

        Raises:
            TopicNotFound: The topic does not exist.
            InvalidValue: There are more than 10 000 samples, or the step is not a multiple of 10 s.
        """
        return self._run(history.read(self._context(topic), since, step))
