"""The steps of the server, beside those of operators and some of producers."""

from __future__ import annotations

import rmq
from rmq.server.leadership import Leadership
from rmq.server.services.retention import Retention
from rmq.server.services.rollback import Rollback
from rmq.server.services.sampler import Sampler
from rmq.server.services.schedules import Schedules
from rmq.server.survey import Survey
from tests.acl.registry import of, settle_one_with_a_dedup_key
from tests.acl.scene import Scene


@of("server")
def leads(s: Scene) -> None:
    with rmq.Client(s.url, retry_for=0) as client:
        leadership = Leadership(client._transport, "rmq")
        leadership.run_once()
        assert leadership.leads()
        leadership.release()


@of("server")
def gives_back_drops_and_samples(s: Scene) -> None:
    topic = s.full.topic(s.name, dead_retention=60, retry="immediate")
    topic.send(1)
    topic.send(2)
    with topic.consumer(lease=1) as consumer:
        consumer.receive()[0].reject("why")
    topic.consumer(lease=1).receive()
    s.later(120)
    with rmq.Client(s.url, retry_for=0) as client:
        survey = Survey(client._transport, "rmq")
        survey.run_once()
        # The survey goes on where a topic is refused, so that is asked for again.
        survey.topics = {s.name: survey.topics.get(s.name) or survey._read(s.name)}
        assert Sampler(client._transport, survey).run_once() == 1
        assert Rollback(client._transport, survey).run_once() >= 1
        assert Retention(client._transport, survey).run_once() >= 1


@of("server")
def sends_what_is_due(s: Scene) -> None:
    settle_one_with_a_dedup_key(s)
    s.full.topic(s.name).every("quick", every=1).declare()
    s.later(5)
    with rmq.Client(s.url, retry_for=0) as client:
        assert Schedules(client._transport, "rmq").run_once() >= 1
