"""The operations of `Admin` on dead letters, and the purge of waiting messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from rmq.features.dead_letters import edit, flows, reading
from rmq.features.dead_letters.edit import UNCHANGED, EditStatus
from rmq.features.dead_letters.flows import Filter, RedriveResult
from rmq.features.dead_letters.jobs import flows as jobs_flows
from rmq.features.dead_letters.reading import DeadLetterGroups, DeadLetterPage
from rmq.kernel.core.ids import Id
from rmq.kernel.core.message import QueueWord
from rmq.kernel.topic import filter as dead_letters_filter
from rmq.kernel.topic.admin_part import AsyncAdminPart
from rmq.kernel.topic.filter import DeadLetterFilter
from rmq.kernel.transport.flow.steps import Progress


class AsyncDeadLetterAdmin(AsyncAdminPart):
    """Lists, changes, redrives, purges and restores dead letters."""

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
        fresh: bool = False,
        dry_run: bool = False,
        rate: float | None = None,
        progress: Progress | None = None,
    ) -> RedriveResult:
        """Send dead letters back to their topic. Each letter gets its full number of retries again.

        Args:
            topic: Name of the topic.
            ids: Ids of the dead letters. Default: all dead letters that meet the other conditions.
            reason: Reason of the failure: failed, lease ran out, rejected, undecodable, expired or
                unhandled.
            error: Text that the error must contain, in upper or lower case.
            older_than: Minimum time since the message died, in seconds or as a timedelta.
            type: Type of the messages.
            filter: Filter, for example `error contains "timeout" and body.order>100`.
                docs/dead-letters.md describes filters.
            to: Another topic that gets the messages immediately. The topic must exist. If the topic
                refuses a message, the message stays dead, and `RedriveResult.refused` counts the
                reason.
            fresh: Whether to delete the recorded steps (`Delivery.step`) and the cursors of the
                messages, so that handlers start from the beginning. By default, the next attempt
                continues the work. With `to`, RMQ always deletes the steps.
            dry_run: Whether to only count the dead letters.
            rate: Maximum number of messages per second.
            progress: Function that RMQ calls as `progress(done, all)` during the work.

        Guarantee:
            At every moment, a message is either dead or waiting. If the call is interrupted, repeat
            the call. It continues with the remaining dead letters. With `to`, the other topic
            stores a letter once, even after an interruption. An interruption may stop some letters
            in the middle of their move; the repeated call completes the move.
        """
        wanted = Filter(ids, reason, error, older_than, type, filter)
        context = self._context(topic)
        return await self._run(flows.redrive(context, wanted, dry_run, rate, progress, to, fresh))

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
        """Delete waiting messages or dead letters. Return the number of deleted messages.

        RMQ does not delete messages in flight. It deletes waiting messages permanently. It moves
        dead letters to the trash, from which `restore` brings them back. A dead letter in the trash
        does not count as purged until RMQ deletes it from the trash.

        Args:
            topic: Name of the topic.
            queue: "waiting" (or "store") for waiting messages, or "dead" for dead letters.
            ids: As for `redrive`. All conditions apply to dead letters only.
            reason: As for `redrive`.
            error: As for `redrive`.
            older_than: As for `redrive`.
            type: As for `redrive`.
            filter: As for `redrive`.
            keep: Time for which dead letters can be restored, in seconds or as a timedelta.
                Default: 24 hours. With 0, RMQ deletes them permanently.
            dry_run: Whether to only count the messages.
            progress: Function that RMQ calls as `progress(done, all)` during the work.
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
        """Restore dead letters from the trash. Return the number of restored letters.

        The conditions are the same as for `redrive`. If `job` is the id of a purge, RMQ restores
        only letters of that purge. A restored letter keeps its time of death.

        If the topic has a `dead_retention`, a restored letter stays for at least 24 hours, or for
        the retention if the retention is shorter. If necessary, RMQ changes the time of death of
        the letter.

        Guarantee:
            A letter is either in the trash or among the dead letters. If the call is interrupted,
            repeat the call.
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
        """Return a page of dead letters and the cursor of the next page.

        The dead letters of each slot (part of the topic) are sorted, oldest first.

        Args:
            topic: Name of the topic.
            filter: Filter that the dead letters must match.
            cursor: Cursor that the previous page returned. Default: start at the beginning.
            limit: Maximum number of dead letters to return, 1 to 1000.
            scan: Maximum number of dead letters to examine. So a page may be short or empty
                although more dead letters follow. Continue as long as a page returns a cursor.
            raw: Whether the `body` of each message is a `rmq.kernel.core.record.Record`. It has the
                bytes that Redis stores and names the codec, but is not decoded.
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
        """Group the dead letters of a topic by cause (fingerprint). Return the largest group first.

        RMQ reads all dead letters in pages. The result has at most 1000 groups. The attribute
        `other` counts the dead letters of the remaining groups.
        """
        wanted = dead_letters_filter.given(filter)
        return await self._run(reading.groups(self._context(topic), wanted, progress))

    async def dead_letter_edit(
        self,
        topic: str,
        id: Id,
        *,
        body: Any = UNCHANGED,
        headers: Mapping[str, str] | None = None,
    ) -> EditStatus:
        """Change the body or the headers of a dead letter, and send the letter back.

        The message keeps its id, type, group, priority, expiry and steps. It gets its full number
        of retries again. RMQ encodes the new body with the codec of the old body, without
        compression. It encodes the body of an offloaded message as JSON.

        Args:
            topic: Name of the topic.
            id: Id of the dead letter.
            body: New body. Default: the old body.
            headers: All headers of the message, except those that RMQ added. Default: the old
                headers.

        Returns:
            "redriven", "gone" (the message is not a dead letter, or it died again during the call),
            "moving" (a redrive is moving it to another topic) or "unreadable". Unless the result is
            "redriven", nothing was changed.

        Guarantee:
            The change and the redrive are one step: either consumers get the changed message, or
            the dead letter is unchanged.

        Raises:
            TopicNotFound: The topic does not exist.
            InvalidValue, InvalidType: Neither a body nor headers are given, or a header is not
                valid. This error also means that the body is encrypted, or that the message is a
                merge of several messages.
            EncodeError: The codec of the message cannot encode the body.
            PayloadTooLarge: The body is larger than the `max_body` of the topic.
        """
        return await self._run(edit.edit(self._context(topic), id, body, headers))

    async def dead_letter_causes(
        self,
        *,
        filter: DeadLetterFilter | str | None = None,
        scan: int = reading.CAUSES_SCAN,
        progress: Progress | None = None,
    ) -> DeadLetterGroups:
        """Group the dead letters of all topics by cause. Return the largest group first.

        Each group has the number of its dead letters in each topic. The result has at most 1000
        groups. Topics that this Redis user may not read are omitted.

        Args:
            filter: Filter that the dead letters must match.
            scan: Approximate maximum number of dead letters to examine. RMQ examines topics with
                few dead letters first. The attribute `unread` counts the dead letters that were not
                examined.
            progress: Function that RMQ calls as `progress(done, all)` during the work.
        """
        wanted = dead_letters_filter.given(filter)
        return await self._run(reading.causes(self._prefix, wanted, scan, progress))
