"""Administration of messages, dead letters and topics."""

from __future__ import annotations

import contextlib
from datetime import timedelta

import rmq
from tests.golden.scenarios.registry import NOW, bury, fill, scenario
from tests.golden.wire import Scene


@scenario
def change_messages(scene: Scene) -> None:
    """Look a message up, give it another priority and time, and cancel it."""
    topic = scene.opened(slots=2)
    id = topic.send("x", slot_basis="a").id
    topic.get(id)
    topic.set_priority(id, 500)
    topic.reschedule(id, delay=60)
    topic.reschedule(str(id), at=NOW + timedelta(hours=1))
    topic.cancel(id)
    scene.admin.get("orders", id)


@scenario
def look_at_messages(scene: Scene) -> None:
    """Peek, page, and divide queues."""
    topic = fill(scene, 4, slots=2)
    with topic.consumer() as consumer:
        consumer.reject(consumer.receive(1), "bad")
        consumer.receive(1)
    admin = scene.admin
    for queue in ("store", "prepare", "dead"):
        admin.peek("orders", 2, queue)
    page = admin.peek_page("orders", "store", limit=1)
    admin.peek_page("orders", "store", limit=1, cursor=page.cursor)
    for span in admin.spans("orders", "waiting", 1, 2):
        admin.page("orders", "waiting", span)


@scenario
def redrive(scene: Scene) -> None:
    """Send dead letters back: one, those of a reason, by a filter, all."""
    ids = bury(scene)
    admin = scene.admin
    admin.redrive("orders", ids=ids[:1])
    admin.redrive("orders", reason="rejected", error="unread", dry_run=True)
    admin.redrive("orders", filter='error contains "customer" and body.order>100')
    admin.redrive("orders")


@scenario
def redrive_to_another_topic(scene: Scene) -> None:
    bury(scene, 2)
    scene.opened("others")
    scene.admin.redrive("orders", to="others")


@scenario
def purge_and_restore(scene: Scene) -> None:
    """Purge dead letters and bring them back; purge them and waiting messages for good."""
    ids = bury(scene)
    admin = scene.admin
    admin.purge("orders", "dead", ids=ids[:2], keep=3600)
    admin.restore("orders")
    admin.purge("orders", "dead", keep=0)
    scene.topic().send(1)
    admin.purge("orders", "store")


@scenario
def look_at_dead_letters(scene: Scene) -> None:
    bury(scene)
    admin = scene.admin
    page = admin.dead_letters("orders", limit=1)
    admin.dead_letters("orders", filter="reason=rejected", cursor=page.cursor)
    admin.dead_letter_groups("orders")


@scenario
def jobs(scene: Scene) -> None:
    """Start jobs, run one to its end, pause, resume and stop another."""
    bury(scene)
    admin = scene.admin
    purge = admin.job_start("orders", "purge", conditions={"error": "unread"}, by="anna", keep=60)
    admin.job_run(purge.id)
    admin.restore("orders", job=purge.id)
    redrive = admin.job_start("orders", by="anna", expected=4, rate=100, dedup_key="key")
    admin.job_pause(redrive.id, by="anna")
    admin.job_resume(redrive.id, by="anna")
    admin.job_stop(redrive.id, by="anna")
    admin.job(redrive.id)
    admin.jobs("orders")
    admin.job_outcomes(purge.id)
    admin.audit_trail(10)


@scenario
def look_at_topics(scene: Scene) -> None:
    """List topics, count what they hold, and read their history."""
    topic = fill(scene, 3, slots=2)
    topic.send("later", delay=100)
    admin = scene.admin
    admin.topics()
    admin.stats("orders")
    admin.stats_by_slot("orders")
    admin.due_counts("orders")
    admin.samples("orders", since=60)
    admin.workers()


@scenario
def administer_topics(scene: Scene) -> None:
    """Change settings, pause, resume, resize and delete a topic."""
    fill(scene, 2, slots=2)
    admin = scene.admin
    admin.topic_set("orders", lease=60, retry=rmq.Levels((1, 10)), max_length=50)
    admin.topic_pause("orders", verb="both", by="anna", why="a deployment")
    with contextlib.suppress(rmq.TopicPaused):
        scene.topic().send("while paused")
    admin.topic_resume("orders")
    admin.purge("orders", "store")
    admin.topic_resize("orders", 4, dry_run=True)
    admin.topic_resize("orders", 4)
    scene.topic().send("after")
    with contextlib.suppress(rmq.TopicNotEmpty):
        admin.topic_delete("orders")
    admin.topic_delete("orders", force=True)


@scenario
def schedules(scene: Scene) -> None:
    """Declare schedules, and do with them what a person can."""
    topic = scene.opened()
    topic.every("minutely", every=60, body={"a": 1}, headers={"a": "b"}, jitter=5).declare()
    topic.every("daily", cron="0 6 * * *", tz="Europe/Berlin", catch_up="all").declare()
    topic.every("daily", cron="0 7 * * *", tz="Europe/Berlin", priority=300).declare()
    admin = scene.admin
    admin.schedules("orders")
    admin.schedule_pause("orders", "daily")
    admin.schedule_resume("orders", "daily")
    admin.schedule_run("orders", "minutely")
    admin.schedule_delete("orders", "minutely")


@scenario
def claims(scene: Scene) -> None:
    scene.opened(slots=2)
    scene.admin.claim("orders", "invoice 7")
    scene.admin.unclaim("orders", "invoice 7", consumer="billing")


@scenario
def tokens(scene: Scene) -> None:
    admin = scene.admin
    admin.token_create("dashboards", "viewer")
    admin.tokens()
    admin.token_revoke("dashboards")
