"""Dead letters: redrive and purge them; purge waiting messages."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from rmq.features.dead_letters import filter as dead_letters_filter, flows, reading
from rmq.features.dead_letters.filter import DeadLetterFilter
from rmq.features.dead_letters.flows import Filter, RedriveResult
from rmq.features.dead_letters.jobs import flows as jobs_flows
from rmq.features.dead_letters.reading import DeadLetterGroups, DeadLetterPage
from rmq.kernel.core.ids import Id
from rmq.kernel.core.message import QueueWord
from rmq.kernel.topic.verbs import AsyncAdminPart
from rmq.kernel.transport.flow.steps import Progress


class AsyncDeadLetterAdmin(AsyncAdminPart):
    """Verbs on dead letters."""

    async def redrive(
        self,
        topic: str,
        *,
        ids: Sequence[Id] | None = None,
        reason: str | None = None,
        error: str | None = None,
        older_than: float | timedelta | None = None,
        type: str | None = None,
        filter: DeadLetterFilter | str | None = None,
        to: str | None = None,
        dry_run: bool = False,
        rate: float | None = None,
        progress: Progress | None = None,
    ) -> RedriveResult:
        """Send dead letters back to be consumed again, with all their retries.

        Args:
            topic: its name.
            ids: only these.
            reason: only those of it: failed, lease ran out, rejected, undecodable, expired,
                unhandled.
            error: only those whose error contains this text, in upper or lower case.
            older_than: only those dead for so long, seconds or timedelta.
            type: only those that were sent with it.
            filter: only those that fit it, as error contains "timeout" and body.order>100; see
                docs/dead-letters.md.
            to: another topic to which they go instead, at once. It must exist; what it refuses
                stays dead, and `RedriveResult.refused` counts why.
            dry_run: only count them.
            rate: at most so many a second.
            progress: called with (done, all) as it goes.

        Guarantee:
            A message is dead or waiting, never both or neither.
            Stopped half-way, run it again: it goes on with what is still dead. With `to`, a letter
            is stored there once, also if this stops between its steps: then the letter is held
            here until the same is run again.
        """
        wanted = Filter(ids, reason, error, older_than, type, filter)
        context = self._context(topic)
        return await self._run(flows.redrive(context, wanted, dry_run, rate, progress, to))

    async def purge(
        self,
        topic: str,
        queue: QueueWord,
        *,
        ids: Sequence[Id] | None = None,
        reason: str | None = None,
        error: str | None = None,
        older_than: float | timedelta | None = None,
        type: str | None = None,
        filter: DeadLetterFilter | str | None = None,
        keep: float | timedelta | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> int:
        """Delete waiting messages ("store") or dead letters ("dead"); return how many.

        Messages in flight are not touched. Waiting messages are deleted for good. Dead letters go
        to the trash, from where `restore` puts them back; they count as purged when they leave it.

        Args:
            topic: its name.
            queue: "store" or "waiting", or "dead".
            ids: only these dead letters; this and the filters are those of `redrive`.
            reason: see `redrive`.
            error: see `redrive`.
            older_than: see `redrive`.
            type: see `redrive`.
            filter: see `redrive`.
            keep: how long dead letters can be restored, seconds or timedelta; None: 24 hours; 0:
                they are deleted for good.
            dry_run: only count them.
            progress: called with (done, all) as it goes.
        """
        wanted = Filter(ids, reason, error, older_than, type, filter)
        context = self._context(topic)
        return await self._run(flows.purge(context, queue, wanted, dry_run, progress, keep))

    async def restore(
        self,
        topic: str,
        *,
        ids: Sequence[Id] | None = None,
        reason: str | None = None,
        error: str | None = None,
        type: str | None = None,
        filter: DeadLetterFilter | str | None = None,
        job: str | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> int:
        """Put dead letters back from the trash, with their time of death; return how many.

        The filters are those of `redrive`; with `job`, the id of a purge, only those that it put
        there. In a topic with a `dead_retention`, each letter stays
        for another 24 hours at least, or for the retention if that is shorter: one that has less
        time left gets a later time of death.

        Guarantee:
            A letter is in the trash or among the dead letters. Stopped half-way, run it again.
        """
        by = None if job is None else await self._run(jobs_flows.job(self._prefix, job))
        wanted = Filter(ids, reason, error, None, type, filter, by)
        return await self._run(flows.restore(self._context(topic), wanted, dry_run, progress))

    async def dead_letters(
        self,
        topic: str,
        *,
        filter: DeadLetterFilter | str | None = None,
        cursor: str | None = None,
        limit: int = 100,
        scan: int = reading.SCAN,
        raw: bool = False,
    ) -> DeadLetterPage:
        """Return a page of dead letters, the oldest of each slot first, and a cursor for the next.

        Args:
            topic: its name.
            filter: only those that fit it.
            cursor: of the page before; None: from the beginning.
            limit: the largest number to return, 1 to 1000.
            scan: the largest number to look at. A page may so have fewer, or none, though more
                come: continue while it has a cursor.
            raw: bodies as `rmq.kernel.core.record.Record`: with their codec, and not decoded.
        """
        wanted = dead_letters_filter.given(filter)
        return await self._run(reading.page(self._context(topic), wanted, cursor, limit, scan, raw))

    async def dead_letter_groups(
        self,
        topic: str,
        *,
        filter: DeadLetterFilter | str | None = None,
        progress: Progress | None = None,
    ) -> DeadLetterGroups:
        """Return the dead letters in groups of one cause (fingerprint), the largest first.

        All dead letters are read, in pages; memory holds 1000 groups, and the dead letters of
        further ones are counted in `other`.
        """
        wanted = dead_letters_filter.given(filter)
        return await self._run(reading.groups(self._context(topic), wanted, progress))
