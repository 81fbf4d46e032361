# Generated from rmq/features/dead_letters/admin.py: change that, then run `make fmt`.
"""The blocking classes of `rmq.features.dead_letters.admin`."""

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
from rmq.kernel.topic.admin_part import AdminPart
from rmq.kernel.topic.filter import DeadLetterFilter
from rmq.kernel.transport.flow.steps import Progress


class DeadLetterAdmin(AdminPart):
    """Operations on dead letters."""

    def redrive(
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
            reason: Reason of the failure: failed, lease ran out, rejected, undecodable,
                expired or unhandled.
            error: Text that the error must contain, in upper or lower case.
            older_than: Minimum time since the message died, in seconds or as a timedelta.
            type: Type of the messages.
            filter: Filter, for example `error contains "timeout" and body.order>100`.
                docs/dead-letters.md describes filters.
            to: Another topic, to which the messages are sent immediately. The topic must exist. A
                message that the other topic refuses stays dead, and `RedriveResult.refused` counts
                the reasons.
            fresh: Whether to delete the recorded steps (`Delivery.step`) and the cursors of the
                messages, so that handlers repeat the whole work. By default, the next attempt
                continues the work. With `to`, the steps are always deleted.
            dry_run: Whether to only count the dead letters.
            rate: Maximum number of messages per second.
            progress: Function that is called with (done, all) during the work.

        Guarantee:
            A message is dead or waiting, never both or neither. If the call is interrupted, repeat
            it: it continues with the remaining dead letters. With `to`, a letter is stored in the
            other topic once, even after an interruption. Some letters may then be in the middle of
            their move, and the repeated call completes this move.
        """
        wanted = Filter(ids, reason, error, older_than, type, filter)
        context = self._context(topic)
        return self._run(flows.redrive(context, wanted, dry_run, rate, progress, to, fresh))

    def purge(
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

        Messages in flight are not deleted. Waiting messages are deleted permanently. Dead letters
        go to the trash, from which `restore` brings them back. The count of purged messages
        includes a dead letter only after its deletion from the trash.

        Args:
            topic: Name of the topic.
            queue: "waiting" (or "store") for waiting messages, or "dead" for dead letters.
            ids: As for `redrive`. All conditions apply to dead letters only.
            reason: As for `redrive`.
            error: As for `redrive`.
            older_than: As for `redrive`.
            type: As for `redrive`.
            filter: As for `redrive`.
            keep: How long dead letters can be restored, in seconds or as a timedelta. Default: 24
                hours. With 0 they are deleted permanently.
            dry_run: Whether to only count the messages.
            progress: Function that is called with (done, all) during the work.
        """
        wanted = Filter(ids, reason, error, older_than, type, filter)
        context = self._context(topic)
        return self._run(flows.purge(context, queue, wanted, dry_run, progress, keep))

    def restore(
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

        `redrive` describes the conditions. If `job` is the id of a purge, only letters of that
        purge are restored. A restored letter keeps its time of death. In a topic with the setting
        `dead_retention`, each restored letter stays for at least another 24 hours, or for the
        retention if the retention is shorter. If a letter has less time left, it gets a later time
        of death.

        Guarantee:
            A letter is either in the trash or among the dead letters. If the call is interrupted,
            run it again.
        """
        by = None if job is None else self._run(jobs_flows.job(self._prefix, job))
        wanted = Filter(ids, reason, error, None, type, filter, by)
        return self._run(flows.restore(self._context(topic), wanted, dry_run, progress))

    def dead_letters(
        self,
        topic: str,
        *,
        filter: DeadLetterFilter | str | None = None,
        cursor: str | None = None,
        limit: int = 100,
        scan: int = reading.SCAN,
        raw: bool = False,
    ) -> DeadLetterPage:
        """Return a page of dead letters, oldest first in each slot, and the next cursor.

        Args:
            topic: Name of the topic.
            filter: Filter that the dead letters must match.
            cursor: Cursor of the previous page. Default: start at the beginning.
            limit: Maximum number of dead letters to return, 1 to 1000.
            scan: Maximum number of dead letters to examine. A page may therefore be short or empty
                although more dead letters follow. Continue while the page has a cursor.
            raw: Whether to return each body as a `rmq.kernel.core.record.Record`, which is not
                decoded and names the codec.
        """
        wanted = dead_letters_filter.given(filter)
        return self._run(reading.page(self._context(topic), wanted, cursor, limit, scan, raw))

    def dead_letter_groups(
        self,
        topic: str,
        *,
        filter: DeadLetterFilter | str | None = None,
        progress: Progress | None = None,
    ) -> DeadLetterGroups:
        """Return the dead letters grouped by cause (fingerprint), largest group first.

        All dead letters are read, in pages. At most 1000 groups are returned. The attribute `other`
        counts the dead letters of all further groups.
        """
        wanted = dead_letters_filter.given(filter)
        return self._run(reading.groups(self._context(topic), wanted, progress))

    def dead_letter_edit(
        self,
        topic: str,
        id: Id,
        *,
        body: Any = UNCHANGED,
        headers: Mapping[str, str] | None = None,
    ) -> EditStatus:
        """Send a dead letter back with another body, other headers, or both.

        The message keeps its id, type, group, priority, expiry and steps, and gets its full number
        of retries. The new body is encoded with the codec of the old body, without compression. The
        body of an offloaded message is encoded as JSON.

        Args:
            topic: Name of the topic.
            id: Id of the dead letter.
            body: New body. Default: the old body.
            headers: All headers of the message, except those that RMQ added. Default: the old
                headers.

        Returns:
            "redriven", "gone" (not a dead letter, or it died again meanwhile), "moving" (a redrive
            is moving it to another topic) or "unreadable". Unless the result is "redriven", nothing
            was changed.

        Guarantee:
            The change and the redrive are one step: either a consumer gets the new body, or the
            dead letter is unchanged.

        Raises:
            TopicNotFound: The topic does not exist.
            InvalidValue, InvalidType: There is nothing to change, a header is not valid, the body
                is encrypted, or the message collected several bodies.
            EncodeError: The codec of the message cannot encode the body.
            PayloadTooLarge: The body is larger than the `max_body` of the topic.
        """
        return self._run(edit.edit(self._context(topic), id, body, headers))

    def dead_letter_causes(
        self,
        *,
        filter: DeadLetterFilter | str | None = None,
        scan: int = reading.CAUSES_SCAN,
        progress: Progress | None = None,
    ) -> DeadLetterGroups:
        """Return the dead letters of all topics grouped by cause, largest group first.

        Each group has the number of its dead letters in each topic. At most 1000 groups are
        returned. Topics that this Redis user may not read are omitted.

        Args:
            filter: Filter that the dead letters must match.
            scan: Approximate maximum number of dead letters to examine. Topics with few dead
                letters are read first. The attribute `unread` counts the other dead letters.
            progress: Function that is called with (done, all) during the work.
        """
        wanted = dead_letters_filter.given(filter)
        return self._run(reading.causes(self._prefix, wanted, scan, progress))
