"""Topics: list, read and change their settings, delete them, count what they hold."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Unpack

from rmq.features.topic_admin import flows, history, resize
from rmq.features.topic_admin.flows import DeleteResult
from rmq.features.topic_admin.resize import ResizeResult
from rmq.kernel.core.history import Sample
from rmq.kernel.core.pause import Pause, PauseVerb, check_text, verbs_of, who
from rmq.kernel.core.settings import Settings, TopicSettings, check_changes
from rmq.kernel.core.validation import Duration
from rmq.kernel.topic import overview, stats
from rmq.kernel.topic.stats import STEPS, DueCount
from rmq.kernel.topic.verbs import AsyncAdminPart
from rmq.kernel.transport.flow.steps import Progress


class AsyncTopicAdmin(AsyncAdminPart):
    """Verbs on a topic as a whole."""

    async def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return await self._run(overview.topics(self._prefix))

    async def settings(self, topic: str) -> Settings:
        """Return the settings of a topic. Raises TopicNotFound."""
        return await self._run(flows.topic_settings(self._context(topic)))

    async def topic_set(
        self,
        topic: str,
        *,
        unless_changed: Settings | None = None,
        **settings: Unpack[TopicSettings],
    ) -> Settings:
        """Change settings of a topic while it is in use; return all its settings.

        The scripts use the new ones from then on, for waiting messages, too. Clients keep
        `default_priority`, `max_body`, `expires`, `durability` and `overflow`, and follow within
        30 s of use. A running consumer or worker keeps its `lease`.
        Programs that name another value when they open the topic get SettingsMismatch, so change
        them too.

        Args:
            topic: its name.
            unless_changed: the settings as `settings` has returned them. Where somebody has
                changed, paused or resized the topic since then, nothing is done.
            settings: as for `Client.topic`. `slots` and `groups` cannot be changed.

        Guarantee:
            Stopped half-way, some slots have the old settings until this call is made again, or any
            program opens the topic. Two callers at a time: each setting is the later one's, unless
            they give `unless_changed`.

        Raises:
            InvalidValue, InvalidType: a setting cannot be changed, or not to this.
            SettingsMismatch: the topic is not as in `unless_changed`.
            TopicNotFound: there is no such topic.
        """
        asked = check_changes(settings)
        return await self._run(flows.topic_set(self._context(topic), asked, unless_changed))

    async def topic_pause(
        self, topic: str, *, verb: PauseVerb = "receive", by: str | None = None, why: str = ""
    ) -> Pause:
        """Stop every delivery of a topic, or every send to it, until `topic_resume`.

        receive: consumers, workers and queries of all programs get nothing from then on, and wait.
        Messages in flight may be settled; those that fail, or whose lease expires, wait again.
        send: calls that add a message raise TopicPaused: sends, merges, `publish`.
        Schedules hold their messages, and continue as after an outage (`catch_up`); the relay of
        an outbox waits. Retries, rollbacks, staging, and redrives of its own dead letters continue.
        The pause is kept in Redis. A topic that is paused already keeps its pause. Returns the
        pause, that of receive for "both".

        Args:
            topic: its name.
            verb: "receive", "send" or "both".
            by: who pauses it, for people to read; the default is user@host.
            why: for people to read.

        Guarantee:
            When this returns, no take hands over a message, or no send is accepted. Stopped
            half-way, some slots are not paused until this call is made again, or any program opens
            the topic.

        Raises:
            TopicNotFound: there is no such topic.
            InvalidValue: a text is longer than a line of 500 characters, or the verb is none.
        """
        verbs = verbs_of(verb)
        by, why = who(by), check_text(why, "why")
        return await self._run(flows.topic_pause(self._context(topic), by, why, verbs))

    async def topic_resume(self, topic: str, *, verb: PauseVerb = "both") -> Pause | None:
        """End pauses of a topic, and wake its consumers; return the pause, None if there was none.

        Args:
            topic: its name.
            verb: "receive", "send" or "both".

        Raises:
            TopicNotFound: there is no such topic.
        """
        return await self._run(flows.topic_resume(self._context(topic), verbs_of(verb)))

    async def topic_resize(
        self,
        topic: str,
        slots: int,
        *,
        dry_run: bool = False,
        wait: bool = True,
        progress: Progress | None = None,
    ) -> ResizeResult:
        """Change the number of slots of a topic while it is in use; return how far it has come.

        Messages stay where they are, with their ids; new ones go to the slots of the new number. A
        slot gives its new messages when older ones of the same bases, in other slots, are settled
        or dead. This call waits for that; stopped, it continues when it is made again, and a server
        (`rmq server`) finishes it.

        Args:
            topic: its name.
            slots: a multiple or a divisor of the number that it has, 1 to 1024.
            dry_run: only check, and count the messages that newer ones would await.
            wait: False: return at once, and leave the rest to a server, or the same call.
            progress: called with (slots done, all slots) as it goes.

        Guarantee:
            No message is lost, or stored twice. Of one basis, messages sent after the resize are
            not delivered before those that were sent earlier and are due, if neither has an id of
            its own or a dedup key: such messages, merge keys and claims keep the slots with
            which the topic was created. Messages that are due later are not waited for.

        Raises:
            InvalidValue: it cannot be resized so: the number does not fit, or the topic has a limit
                or is audited. Nothing was changed.
            TopicNotFound: there is no such topic.
        """
        context = self._context(topic)
        return await self._run(resize.topic_resize(context, slots, dry_run, wait, progress))

    async def topic_delete(
        self,
        topic: str,
        *,
        force: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> DeleteResult:
        """Delete a topic for good, with everything that belongs to it; return what it held.

        Producers and consumers that have it open get TopicVanished. A topic of the same name is a
        new one to them, until they open it again.

        Args:
            topic: its name.
            force: delete it even if it holds messages.
            dry_run: only count them.
            progress: called with (slots done, all slots) as it goes.

        Guarantee:
            If it is stopped half-way, no client can open the topic, or sends stay paused (by
            "topic_delete"); run it again, or resume them. A slot is deleted
            whole or not at all. Without `force` no message is deleted: sends raise TopicPaused
            while all slots are looked at, and nothing is deleted if one has a message.

        Raises:
            TopicNotEmpty: it holds messages, and `force` is not set, or objects in a store belong
                to it; nothing was deleted.
            TopicNotFound: there is no such topic.
        """
        return await self._run(flows.topic_delete(self._context(topic), force, dry_run, progress))

    async def stats(self, topic: str) -> dict[str, int]:
        """Return the counts of a topic over all slots; `lua/topic/stats.lua` lists their names."""
        return await self._run(stats.stats(self._context(topic)))

    async def stats_by_slot(self, topic: str) -> list[dict[str, int]]:
        """Return the counts of each slot, as `stats` over all."""
        return await self._run(stats.stats_by_slot(self._context(topic)))

    async def due_counts(self, topic: str, *, steps: Sequence[Duration] = STEPS) -> list[DueCount]:
        """Return how many messages of a topic are due now, and how many will be due by when.

        Messages that wait for a time are counted: delayed ones, open merge windows, retries that
        wait, and those that are due already, held back by a pause or a limit or not. Messages that
        may be taken at once by their priority, or as a retry, have no due time, nor have those that
        are held behind others of their group.

        Args:
            topic: its name.
            steps: 1 to 60 times from now, in seconds or as timedeltas, each longer than the one
                before; 0: due now. The default: now, 1, 5 and 15 minutes, 1 and 6 hours, 1 and
                7 days.

        Returns:
            A pair (within_s, messages) for each step, then one for all later messages, whose
            within_s is None. A message is in the first pair that it fits.

        Guarantee:
            The counts of a slot are of one moment, by its Redis' clock; slots are read one after
            the other.

        Raises:
            TopicNotFound: there is no such topic.
            InvalidValue, InvalidType: the steps are none.
        """
        return await self._run(stats.due_counts(self._context(topic), steps))

    async def history(
        self,
        topic: str,
        *,
        since: Duration | datetime = history.SINCE,
        step: Duration | None = None,
    ) -> list[Sample]:
        """Return the figures of a topic over time, oldest first, as `rmq server` has kept them.

        Args:
            topic: its name.
            since: from when: seconds or timedelta before now, or an aware datetime. Samples are
                kept for 10 s each for an hour, for a minute each for a day, and for ten minutes
                each for a week; further back there is nothing.
            step: the time between two samples, a multiple of 10 s; None: 10 s for an hour, a
                minute for a day, ten minutes for a week.

        Guarantee:
            Figures are those of moments, as seen at or before `at`; rates count every event, and
            are empty for the last moments of a topic in use until a server has looked again. Where
            no server looked for more than twelve minutes, samples are left out.

        Raises:
            TopicNotFound: there is no such topic.
            InvalidValue: more than 10 000 samples, or a step that is no multiple of 10 s.
        """
        return await self._run(history.read(self._context(topic), since, step))
