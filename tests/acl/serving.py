"""The steps of the server, beside those of operators and some of producers."""

from __future__ import annotations

import rmq
from rmq.features.audit.service import Audits
from rmq.features.dead_letters.service import Expiry
from rmq.features.messages.service import Rollback
from rmq.features.schedules.service import Schedules
from rmq.features.tokens import flows
from rmq.features.topic_admin.service import Retention, Sampler
from rmq.features.workers.service import WorkerRecords
from rmq.http_framework.survey import Survey
from rmq.server.leadership import Leadership
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


@of("server")
def expires_audits_and_forgets_dead_workers(s: Scene) -> None:
    with rmq.Client(s.server.url, interceptors=[rmq.Audit()]) as client:
        client.topic(s.name, on_expire="drop").send(1, expires=1)
        client.topic(s.name, on_expire="drop").send(2)
    s.later(120)
    with s.server.raw() as raw, rmq.Client(s.url, retry_for=0) as client:
        raw.zadd("rmq:workers", {"killed": 1})
        try:
            survey = Survey(client._transport, "rmq")
            survey.run_once()
            survey.topics = {s.name: survey.topics.get(s.name) or survey._read(s.name)}
            assert Expiry(client._transport, survey).run_once() == 1
            assert Audits(client._transport, survey).run_once() == 1
            assert WorkerRecords(client._transport, "rmq").run_once() >= 1
        finally:
            raw.zrem("rmq:workers", "killed")  # others look at that list, too


@of("server")
def knows_tokens_and_keeps_sessions(s: Scene) -> None:
    token = s.full.admin.token_create(s.name, "viewer")
    try:
        with rmq.Client(s.url, retry_for=0) as client:
            run = client._transport.run
            found, now_ms = run(flows.tokens_by_id("rmq"))
            assert found[token.id].digest == token.digest
            run(flows.note_use("rmq", token.id, now_ms))
            assert run(flows.server_secret("rmq")) == run(flows.server_secret("rmq"))
            run(flows.session_store("rmq", s.name, "[]", 5000))
            run(flows.session_touch("rmq", s.name, 9000))
            assert run(flows.session_read("rmq", s.name)) == b"[]"
            run(flows.session_end("rmq", s.name))
            assert run(flows.session_read("rmq", s.name)) is None
    finally:
        s.full.admin.token_revoke(s.name)


@of("server")
def receives_from_several_slots(s: Scene) -> None:
    s.full.topic(s.name, slots=2).send(1)
    with s.api.topic(s.name).consumer() as consumer:
        assert len(consumer.receive()) == 1
        assert consumer.receive() == []
