"""Audit topics whose producers use `rmq.Audit`, but whose workers do not audit.

In each interval, only one server or worker audits a topic.
"""

from __future__ import annotations

import logging
import time

from rmq.features.audit import flows as audit_flow, scripts
from rmq.features.audit.audit import Audit
from rmq.http_framework.survey import Survey, SurveyedService
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import Flow, pipeline
from rmq.kernel.transport.single.blocking import Transport

log = logging.getLogger("rmq")

EVERY_S = 30.0
AUDIT_S = 600.0  # time between two audits of a topic
WITHOUT_S = 1200.0  # time between two checks of a topic without numbered messages
OLDER_S = 60.0  # minimum age of the audited messages


def _is_numbered(context: TopicContext) -> Flow[bool]:
    pages = yield from pipeline([scripts.audit_open(keys) for keys in context.slots])
    return any(page.numbered for page in pages)


class Audits(SurveyedService):
    """Audits each topic once in ten minutes, if programs use `rmq.Audit` for the topic.

    Attributes:
        missing: Number of missing messages of each topic, from the last audits of this server. A
            topic is omitted if no client with `rmq.Audit` has sent messages to it.
    """

    name = "audits"
    every_s = EVERY_S

    def __init__(self, transport: Transport, survey: Survey) -> None:
        super().__init__(transport, survey)
        self._audit = Audit(older_than=OLDER_S)
        # Time of the next audit by topic, on the monotonic clock.
        self._next_at: dict[str, float] = {}
        self.missing: dict[str, int] = {}

    def run_once(self) -> int:
        """Audit each topic whose next audit is due. Return the number of audited topics."""
        topics, now, audited = self._survey.topics, time.monotonic(), 0
        self._next_at = {name: at for name, at in self._next_at.items() if name in topics}
        missing = {name: count for name, count in self.missing.items() if name in topics}
        for name, counts in topics.items():
            if now < self._next_at.get(name, 0.0):
                continue
            # No other server or worker audits the topic in this time.
            every_ms = round(AUDIT_S * 900)
            with self._problems.apart(name, self.name):
                if not self._transport.run(_is_numbered(counts.context)):
                    self._next_at[name] = now + WITHOUT_S
                    continue
                older_ms = self._audit.older_ms
                flow = audit_flow.audit(counts.context, older_ms, every_ms=every_ms)
                report = self._transport.run(flow)
                self._next_at[name] = now + AUDIT_S
                self._audit.report(name, report)
                missing.pop(name, None)
                if report is not None:
                    missing[name] = report.missing
                    audited += 1
        self.missing = missing
        return audited
