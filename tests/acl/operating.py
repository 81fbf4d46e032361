"""The steps of operators and viewers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest

import rmq
from rmq.features.spark import held
from rmq.features.workers import flows
from rmq.kernel.topic import overview
from rmq.kernel.transport.flow.steps import RawCommand
from tests.acl.registry import (
    LARGE,
    RUN,
    handed,
    lose_one,
    of,
    settle_one_with_a_dedup_key,
    waiting,
)
from tests.acl.scene import Scene, version_of


@of("viewer", "operator", "server")
def looks_at_pending_follow_ups(s: Scene) -> None:
    wait_for_a_target(s)
    assert s.api.admin.pending(s.name)[0].entries == 1


@of("operator", "server")
def sends_and_drops_pending_follow_ups(s: Scene) -> None:
    wait_for_a_target(s)
    assert s.api.admin.pending_send(s.name) == 0
    s.full.admin.topic_resume(s.name, verb="send")
    assert s.api.admin.pending_send(s.name) == 1
    assert s.api.admin.pending_drop(s.name, s.name) == 0


def wait_for_a_target(s: Scene) -> None:
    """Ack a message with a follow-up for its own topic, to which sends are paused."""
    topic = s.full.topic(s.name)
    topic.send("first")
    with topic.consumer() as consumer:
        (delivery,) = consumer.receive()
        delivery.then(s.name, "next")
        s.full.admin.topic_pause(s.name, verb="send")
        delivery.ack()


@of("operator", "viewer", "server")
def looks(s: Scene) -> None:
    s.topic(dead_retention=60)
    topic = s.full.topic(s.name)
    ids = [topic.send(n, priority=20 + n).id for n in range(3)] + [topic.send(LARGE).id]
    with topic.consumer() as consumer:
        consumer.receive()[0].reject("why")
        consumer.receive()
        admin = s.api.admin
        assert s.name in admin.topics()
        assert admin.settings(s.name)
        assert admin.stats(s.name)["dead"] == 1
        assert len(admin.stats_by_slot(s.name)) == 1
        assert sum(count.messages for count in admin.due_counts(s.name)) == 0
        for place in ("store", "prepare", "dead"):
            assert admin.peek(s.name, 9, queue=place)
        spans = admin.spans(s.name, "store", 0, 2)
        assert sum(len(admin.page(s.name, "store", span).messages) for span in spans) == 2
        assert admin.get(s.name, ids[0])
        assert s.api.server_info()


@of("operator", "viewer", "server")
def looks_at_the_rest(s: Scene) -> None:
    topic = s.full.topic(s.name)
    topic.every("nightly", every=3600).declare()
    stage = topic.stage()
    stage.push([rmq.Outgoing(1, headers={"k": "1"})])
    topic.publish([stage.staged], query="q", batch=1)
    admin = s.api.admin
    assert [state.name for state in admin.schedules(s.name)] == ["nightly"]
    assert admin.schedule(s.name, "nightly").name == "nightly"
    assert [sink.query for sink in admin.sinks(s.name)] == ["q"]
    s.full._transport.run(flows.report("rmq", "1" * 8, lambda now_ms: "{}", 5000))
    admin.workers()
    s.full._transport.run(flows.forget("rmq", "1" * 8))
    with topic.consumer() as consumer:
        first = rmq.Claims().first(consumer.receive(), key=lambda body: "1")
        assert len(first) == 1
        assert admin.claim(s.name, "1").state == "consuming"


@of("operator", "viewer", "server")
def looks_for_lost_messages(s: Scene) -> None:
    lose_one(s)
    assert s.api.admin.audit(s.name, older_than=timedelta(0)).missing == 1


@of("admin")
def keeps_the_tokens(s: Scene) -> None:
    admin = s.api.admin
    assert admin.token_create(s.name, "operator", expires=60).text
    assert s.name in {token.name for token in admin.tokens()}
    with pytest.raises(rmq.InvalidValue):
        admin.token_create(s.name)
    assert admin.token_revoke(s.name) is True


@of("operator", "server")
def changes_topics(s: Scene) -> None:
    s.topic(limit=rmq.Rate(5, key="k"))
    admin = s.api.admin
    admin.topic_set(s.name, lease=77, limit=None)
    admin.topic_pause(s.name)
    admin.topic_resume(s.name)


@of("operator", "server")
def resizes_topics(s: Scene) -> None:
    topic = s.full.topic(s.name, slots=2)
    topic.send_many([rmq.Outgoing(n, delay=60) for n in range(20)])
    s.api.admin.topic_resize(s.name, 1)
    s.api.admin.topic_resize(s.name, 3)


@of("operator", "server")
def creates_and_deletes_topics(s: Scene) -> None:
    s.api.topic(s.name, slots=2).open()
    s.full.topic(s.name).every("nightly", every=3600).declare()
    stage = s.full.topic(s.name).stage()
    stage.push([rmq.Outgoing(1)])
    s.api.admin.topic_delete(s.name, force=True)


def of_this(name: str) -> Any:
    """Return the topics that a sweep reads: the user of the tests may not read those of others."""
    yield RawCommand("topics", "SMEMBERS", "rmq:topics")
    return [name]


@of("operator", "server")
def sweeps_a_store(s: Scene) -> None:
    s.topic()
    own = rmq.Offloaded(f"memory://{s.name}", above=100)
    topic = s.full.topic(s.name, codec=own)
    topic.send("x" * 1000)
    lost = own.store.new_reference(s.name, topic._context.identity, 0, b"")
    own.store.write(lost, b"")
    with patch.object(overview, "topics", lambda prefix: of_this(s.name)):
        assert s.api.admin.sweep_offloaded(s.name).objects == 1
    s.full.admin.purge(s.name, "store")
    s.api.admin.topic_delete(s.name)


@of("operator", "server")
def repairs(s: Scene) -> None:
    s.topic(retry="immediate")
    topic = s.full.topic(s.name)
    ids = [topic.send(n, delay=60).id for n in range(2)]
    topic.send_many([rmq.Outgoing(n) for n in range(3)])
    mine, admin = s.api.topic(s.name), s.api.admin
    mine.reschedule(ids[0], delay=30)
    mine.set_priority(ids[0], 30)
    mine.cancel(ids[1])
    with topic.consumer() as consumer:
        for delivery in consumer.receive(3):
            delivery.reject("why")
    assert admin.redrive(s.name)
    assert admin.purge(s.name, "store")
    admin.rollback(s.name)


@of("operator", "server")
def purges_and_restores(s: Scene) -> None:
    topic = s.full.topic(s.name)
    topic.send(1)
    with topic.consumer() as consumer:
        consumer.receive()[0].reject("why")
    assert s.api.admin.purge(s.name, "dead", keep=60) == 1
    assert s.api.admin.restore(s.name) == 1


@of("operator", "server")
def redrives_to_one_that_waits(s: Scene) -> None:
    s.topic(retry="immediate")
    topic = s.full.topic(s.name)
    topic.send(1)
    with topic.consumer() as consumer:
        consumer.receive()[0].reject("why")
    with waiting(s) as got:
        s.api.admin.redrive(s.name)
        handed(s, got)


@of("operator", "server")
def redrives_to_another_topic(s: Scene) -> None:
    topic = s.full.topic(s.name, slots=2)
    s.full.topic(f"{s.name}b").open()
    topic.send(1)
    with topic.consumer() as consumer:
        consumer.receive()[0].reject("why")
    assert s.api.admin.redrive(s.name, to=f"{s.name}b").sent == 1
    topic.send(2)
    with topic.consumer() as consumer:
        consumer.receive()[0].reject("why")
    job = s.api.admin.job_start(s.name, to=f"{s.name}b")
    assert s.api.admin.job_run(job.id).done == 1


@of("operator", "server")
def redrives_to_a_topic_with_a_durability(s: Scene) -> None:
    topic = s.full.topic(s.name)
    topic.send(1)
    with topic.consumer() as consumer:
        consumer.receive()[0].reject("why")
    s.full.topic(f"{s.name}b", durability=rmq.Replicated(9, timeout=0.01)).open()
    assert dict(s.api.admin.redrive(s.name, to=f"{s.name}b").refused) == {"not durable": 1}
    if version_of(s.server) != "7.2":
        return
    s.full.admin.topic_set(f"{s.name}b", durability=rmq.Fsync(0, timeout=0.01))
    try:
        s.api.admin.redrive(s.name, to=f"{s.name}b")
    except rmq.AccessDenied:
        raise
    except rmq.ConfigurationError:
        pass  # this server keeps no log


@of("operator", "server")
def operates_schedules(s: Scene) -> None:
    settle_one_with_a_dedup_key(s)
    s.full.topic(s.name).every("nightly", every=3600).declare()
    admin = s.api.admin
    admin.schedule_pause(s.name, "nightly")
    admin.schedule_resume(s.name, "nightly")
    admin.schedule_run(s.name, "nightly")
    admin.schedule_delete(s.name, "nightly")


@of("operator", "viewer", "server")
def looks_at_groups(s: Scene) -> None:
    s.full.topic(s.name, groups=rmq.Groups()).send(1, group="g")
    assert s.api.admin.groups(s.name).groups[0].group == "g"


@of("operator", "server")
def operates_groups(s: Scene) -> None:
    topic = s.full.topic(s.name, groups=rmq.Groups(on_dead="hold"))
    topic.send_many([rmq.Outgoing(n, group="g") for n in range(3)])
    admin = s.api.admin
    assert admin.group_pause(s.name, "g")
    assert admin.group_resume(s.name, "g")
    with topic.consumer() as consumer:
        consumer.receive()[0].reject("why")
    assert admin.group_release(s.name, "g")
    assert admin.group_purge(s.name, "g") == 2


@of("operator", "server")
def runs_jobs(s: Scene) -> None:
    topic = s.full.topic(s.name, retry="immediate")
    topic.send_many([rmq.Outgoing(n) for n in range(3)])
    with topic.consumer() as consumer:
        for delivery in consumer.receive(3):
            delivery.reject("why")
    admin = s.api.admin
    job = admin.job_start(s.name)
    assert admin.job_pause(job.id)
    assert admin.job_resume(job.id)
    assert admin.job_run(job.id).done == 3
    assert admin.job_stop(job.id) is False
    assert admin.job_stop(admin.job_start(s.name).id)
    with topic.consumer() as consumer:
        consumer.receive(1, wait=5)
        assert admin.job_matches(s.name, "cancel", running=True) == 3
        job = admin.job_run(admin.job_start(s.name, "cancel", running=True).id)
    assert (job.done, job.requested) == (2, 1)


@of("operator", "viewer", "server")
def looks_at_jobs(s: Scene) -> None:
    topic = s.full.topic(s.name, retry="immediate")
    topic.send(1)
    with topic.consumer() as consumer:
        consumer.receive()[0].reject("why")
    id = s.full.admin.job_start(s.name).id
    s.full.admin.job_run(id)
    admin = s.api.admin
    assert [job.id for job in admin.jobs(s.name)] == [id]
    assert admin.job(id).done == 1
    assert len(admin.job_outcomes(id)) == 1
    assert admin.audit_trail()


@of("operator", "viewer", "server")
def watches_queries(s: Scene) -> None:
    """As `/metrics` does."""
    s.full.topic(s.name, slots=2).send_many([rmq.Outgoing(n) for n in range(5)])
    s.full.topic(s.name).query(RUN, "there").take({})
    topics = s.run(overview.overview("rmq", [s.name]))
    (query,) = s.run(held.watch(topics, 10))[s.name]
    assert (query.run, query.owner, query.messages) == (RUN, "there", 5)


@of("operator", "server")
def operates_queries(s: Scene) -> None:
    most = 1001  # more than one call gives back
    s.full.topic(s.name, retry="immediate").send_many([rmq.Outgoing(n) for n in range(most)])
    s.full.topic(s.name).query(RUN, "there").take({})
    admin = s.api.admin
    assert [held.run for held in admin.queries(s.name)] == [RUN]
    assert admin.release_query(s.name, RUN, force=True) == most
    admin.forget_sink(s.name, "q")


@of("operator", "server")
def forgets_claims(s: Scene) -> None:
    topic = s.full.topic(s.name)
    topic.send(1)
    with topic.consumer() as consumer:
        rmq.Claims().first(consumer.receive(), key=lambda body: "1")
        assert s.api.admin.unclaim(s.name, "1")


@of("operator", "server")
def accounts_for_lost_messages(s: Scene) -> None:
    lose_one(s)
    found = s.api.admin.audit(s.name, older_than=timedelta(0), forget=True)
    assert found.missing == 1
    assert s.api.admin.audit(s.name, older_than=timedelta(0)).missing == 0
