"""Jobs on a real Redis: in the shell, on a server, paused, stopped, taken over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

import rmq
from rmq.features.dead_letters import scripts
from rmq.features.dead_letters.jobs import flows, run as jobs_run, scripts as jobs_scripts, service
from rmq.features.topic_admin import service as topic_admin_service
from rmq.http_framework import survey
from rmq.kernel.topic import clock as command_clock
from rmq.kernel.transport.flow.steps import Command, Sleep
from tests.server.running import serving, until
from tests.servers import Server as Redis


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service.Jobs, "every_s", 0.1)
    monkeypatch.setattr(jobs_run, "HOLD_MS", 1000)
    monkeypatch.setattr(jobs_run, "RENEW_S", 0.2)


def bury(client: rmq.Client, count: int, error: str = "why", **settings: object) -> rmq.Topic:
    """Send messages and reject all of them."""
    topic = client.topic("orders", **settings)  # type: ignore[arg-type]
    topic.send_many([rmq.Outgoing({"n": n}) for n in range(count)])
    with topic.consumer() as consumer:
        left = count
        while left:
            batch = consumer.receive(1000)
            for delivery in batch:
                delivery.reject(error)
            left -= len(batch)
    time.sleep(0.002)  # a job begins after the last one died
    return topic


def test_a_job_sends_back_what_fits_and_says_what_became_of_each(client: rmq.Client) -> None:
    bury(client, 30, "timeout", slots=2)
    bury(client, 20, "refused")

    started = client.admin.job_start("orders", conditions={"error": "timeout"}, expected=30)
    assert (started.state, started.done, started.runner) == ("running", 0, "")
    seen: list[tuple[int, int]] = []
    job = client.admin.job_run(started.id, progress=lambda done, of: seen.append((done, of)))

    assert (job.state, job.done, job.examined, job.gone) == ("done", 30, 50, 0)
    assert seen[0] == (0, 30)
    assert seen[-1] == (30, 30)
    counts = client.admin.stats("orders")
    assert (counts["dead"], counts["redriven"]) == (20, 30)
    outcomes = client.admin.job_outcomes(job.id)
    assert {each.outcome for each in outcomes} == {"done"}
    waiting = client.admin.peek("orders", 100)
    assert {each.id for each in outcomes} == {each.id for each in waiting}
    assert [each.id for each in client.admin.jobs("orders")] == [job.id]


def test_the_audit_trail_has_start_pause_resume_and_end_once(client: rmq.Client) -> None:
    bury(client, 3)
    job = client.admin.job_start("orders", by="ann@host")
    assert client.admin.job_pause(job.id, by="bob@host")
    assert not client.admin.job_pause(job.id)
    assert client.admin.job_run(job.id).state == "paused"
    assert client.admin.job_resume(job.id, by="bob@host")
    client.admin.job_run(job.id)

    lines = client.admin.audit_trail()

    assert sorted((line.what, line.by) for line in lines) == [
        ("job end", "ann@host"), ("job pause", "bob@host"), ("job resume", "bob@host"),
        ("job start", "ann@host"),
    ]  # fmt: skip
    assert {line.subject for line in lines} == {job.id}


def test_the_audit_trail_ends_at_a_time(client: rmq.Client) -> None:
    bury(client, 1)
    for name in ("ann", "bob"):
        client.admin.job_start("orders", by=name)
    newest, first = client.admin.audit_trail()
    at = datetime.fromtimestamp(first.at_ms / 1000, UTC)

    assert client.admin.audit_trail(until=newest.at_ms)[0] == newest
    assert first in client.admin.audit_trail(until=at)
    assert client.admin.audit_trail(until=first.at_ms - 1) == []
    assert client.admin.audit_trail(1) == [newest]
    with pytest.raises(rmq.InvalidValue, match="until"):
        client.admin.audit_trail(until=1)


def test_what_dies_after_the_job_began_stays_dead(client: rmq.Client) -> None:
    topic = bury(client, 5)
    job = client.admin.job_start("orders")
    time.sleep(0.005)
    bury(client, 7)

    assert client.admin.job_run(job.id).done == 5
    assert client.admin.stats("orders")["dead"] == 7
    with topic.consumer() as consumer:
        assert len(consumer.receive(100)) == 5


def test_what_dies_after_the_job_began_goes_to_no_other_topic_either(client: rmq.Client) -> None:
    topic = bury(client, 5)
    client.topic("other").open()
    job = client.admin.job_start("orders", to="other")
    time.sleep(0.005)
    assert client.admin.redrive("orders", ids=[client.admin.peek("orders", 1, "dead")[0].id]).sent
    with topic.consumer() as consumer:  # it dies again, after the job began
        consumer.receive(1)[0].reject("again")
    bury(client, 7)

    ended = client.admin.job_run(job.id)

    assert (ended.done, ended.gone, ended.to) == (4, 0, "other")
    assert client.admin.stats("orders")["dead"] == 8
    assert client.admin.stats("other")["accepted"] == 4


def test_a_server_runs_what_is_left_to_it_and_two_servers_do_it_once(
    server: Redis, client: rmq.Client, prefix: str
) -> None:
    bury(client, 2500, slots=4)

    with serving(server.url, prefix), serving(server.url, prefix):
        job = client.admin.job_start("orders")
        until(lambda: client.admin.job(job.id).state == "done", "the job")

    assert client.admin.job(job.id).done == 2500
    assert client.admin.stats("orders")["redriven"] == 2500


def test_a_server_may_stop_while_it_begins_a_job(
    client: rmq.Client, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bury(client, 3)
    client.admin.job_start("orders")
    jobs = service.Jobs(client._transport, prefix)
    start = threading.Thread.start

    def start_and_stop(thread: threading.Thread) -> None:
        jobs.stop(1.0)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_and_stop)

    assert jobs.run_once() == 1


class JobClock:
    """The time of a job, which its waits alone move: a machine that is busy takes none of it."""

    def __init__(self, began_ms: int) -> None:
        self.began_ms = self.now_ms = began_ms
        self.waits: list[float] = []
        self.on_wait: list[Callable[[], None]] = []
        self.advance(0)

    @property
    def took_s(self) -> float:
        return (self.now_ms - self.began_ms) / 1000

    def advance(self, seconds: float) -> None:
        """Move the time."""
        self.now_ms += round(seconds * 1000)
        command_clock.set_clock(self.now_ms * 1000)

    def sleep(self, seconds: float) -> Sleep:
        """Stand in for the step that waits."""
        self.waits.append(seconds)
        self.advance(seconds)
        for act in self.on_wait:
            act()
        return Sleep(seconds)


@pytest.fixture
def job_clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], JobClock]]:
    """A function that stops the clock from now on, but for the waits of jobs."""

    def stopped() -> JobClock:
        clock = JobClock(int(time.time() * 1000) + 1000)
        monkeypatch.setattr("rmq.features.dead_letters.jobs.run.Sleep", clock.sleep)
        return clock

    yield stopped
    command_clock.set_clock(None)


def test_a_throttled_job_keeps_its_rate_and_stops_where_it_is_told(
    client: rmq.Client, job_clock: Callable[[], JobClock]
) -> None:
    bury(client, 1000)
    clock = job_clock()
    job = client.admin.job_start("orders", rate=500)
    took: list[float] = []

    def stop_at_half() -> None:
        if client.admin.job(job.id).done >= 500:
            took.append(clock.took_s)
            assert client.admin.job_stop(job.id)
            clock.advance(0.001)

    clock.on_wait.append(stop_at_half)
    began = time.monotonic()
    client.admin.job_run(job.id)

    (half,) = took
    assert half == pytest.approx(1, rel=0.3)
    assert time.monotonic() - began > 0.7
    stopped = client.admin.job(job.id)
    counts = client.admin.stats("orders")
    assert stopped.state == "stopped"
    assert counts["redriven"] == stopped.done == 1000 - counts["dead"]
    assert client.admin.audit_trail()[0].what == "job end"


def test_a_throttled_job_that_was_held_up_makes_up_for_one_second(
    client: rmq.Client, job_clock: Callable[[], JobClock]
) -> None:
    bury(client, 1000)
    clock = job_clock()
    job = client.admin.job_start("orders", rate=500)

    def hold_up() -> None:
        if len(clock.waits) == 1:
            clock.advance(60)

    clock.on_wait.append(hold_up)
    client.admin.job_run(job.id)

    assert client.admin.job(job.id).done == 1000
    made_up_s = 2 + 60 - clock.took_s
    assert made_up_s == pytest.approx(1, abs=0.2)  # a batch is an eighth of a second


def die_in(client: rmq.Client, job: rmq.Job) -> None:
    """Run a job until its runner has acted, and dies before it records that."""
    act = jobs_run._Runner._act

    def acted(self: jobs_run._Runner, *args: object) -> object:
        yield from act(self, *args)  # type: ignore[arg-type]
        raise SystemExit

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(jobs_run._Runner, "_act", acted)
        patched.setattr(jobs_run, "release", lambda *args: iter(()))
        with pytest.raises(SystemExit):
            client.admin.job_run(job.id)


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_batch_that_was_done_but_not_recorded_is_counted_once(
    client: rmq.Client,
    monkeypatch: pytest.MonkeyPatch,
    server: Redis,
    prefix: str,
    forgotten: bool,
) -> None:
    topic = bury(client, 3)
    job = client.admin.job_start("orders")
    die_in(client, job)
    assert client.admin.job(job.id).done == 0
    with topic.consumer() as consumer:  # one of them dies again meanwhile
        consumer.receive(1)[0].reject("again")
    if forgotten:  # as after some minutes
        raw = server.raw()
        slot = f"{prefix}:{{orders_0}}:slot"
        raw.hdel(slot, *[name for name in raw.hkeys(slot) if name.startswith(b"@job")])
        monkeypatch.setattr(jobs_run, "REMEMBERED_MS", -1)

    ended = client.admin.job_run(job.id)

    assert (ended.state, ended.done, ended.gone) == ("done", 3, 0)
    counts = client.admin.stats("orders")
    assert (counts["redriven"], counts["dead"]) == (3, 1)


def test_a_call_that_does_a_part_of_its_messages_is_followed_by_one_for_the_rest(
    client: rmq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    bury(client, 500)
    redrive, sizes = scripts.redrive, list[int]()

    def half(
        context: Any, keys: Any, session: Any, ids: Sequence[bytes], *died_by: int
    ) -> Command[str]:
        """As where the records of the others are too many bytes for one call."""
        sizes.append(len(ids))
        return redrive(context, keys, session, ids[: -(-len(ids) // 2)], *died_by)

    monkeypatch.setattr(scripts, "redrive", half)
    job = client.admin.job_start("orders")
    die_in(client, job)
    first = sizes.copy()
    sizes.clear()

    ended = client.admin.job_run(job.id)

    assert first[:2] == [100, 100]
    assert {100, 50, 25} < set(first), "what a call left is done by further ones"
    assert (ended.state, ended.done, ended.gone) == ("done", 500, 0)
    assert client.admin.stats("orders")["redriven"] == 500
    assert sizes[: len(first)] == first, "the batch is done again by the same calls"


def test_a_runner_that_notes_no_batch_would_count_wrong(
    client: rmq.Client, server: Redis, prefix: str
) -> None:
    """Negative control: what the note is for."""
    bury(client, 3)
    job = client.admin.job_start("orders")
    die_in(client, job)
    server.raw().hdel(f"{prefix}:{{orders}}:job:{job.id[-8:]}", "members")
    server.raw().hset(f"{prefix}:{{orders}}:job:{job.id[-8:]}", mapping={"batch": 0, "until": 0})

    ended = client.admin.job_run(job.id)

    assert ended.done == 0, "three were sent back, and the job does not know it"
    assert client.admin.stats("orders")["redriven"] == 3


def test_a_runner_that_was_held_up_for_long_changes_nothing_any_more(client: rmq.Client) -> None:
    bury(client, 3)
    job = client.admin.job_start("orders")
    run = client._transport.run

    def step(runner: str, **given: object) -> object:
        def flow():  # type: ignore[no-untyped-def]
            return (yield jobs_scripts.job_step(
                client.admin._prefix, job.id, runner, 1000, letters="", examined=0, cursor="",
                keep_s=60, most=10, **given,
            ))  # fmt: skip

        return run(flow())

    def take(runner: str, hold_ms: int) -> jobs_scripts.JobTaken:
        def flow():  # type: ignore[no-untyped-def]
            return (yield jobs_scripts.job_take(client.admin._prefix, job.id, runner, hold_ms))

        return run(flow())

    assert take("late", 1).state == 1
    time.sleep(0.01)
    assert take("other", 60_000).state == 1
    assert take("late", 60_000).state == 0
    assert step("late", number=0, last=True).state == 0
    assert client.admin.job(job.id).state == "running"


def test_ids_alone_are_a_condition(client: rmq.Client) -> None:
    topic = bury(client, 10, slots=3)
    chosen = [message.id for message in client.admin.peek("orders", 10, "dead")][:4]
    waiting = topic.send(1).id

    started = client.admin.job_start("orders", conditions={"ids": [*chosen, waiting]})
    job = client.admin.job_run(started.id)

    assert (job.done, job.examined) == (4, 4)
    assert client.admin.stats("orders")["dead"] == 6


@pytest.mark.parametrize(
    "given",
    [{"verb": "burn"}, {"rate": 0}, {"rate": True}, {"rate": float("inf")},
     {"conditions": {"error": 7}}, {"conditions": {"reason": "bored"}}, {"by": "a\nb"},
     {"expected": "many"}, {"expected": 1.5}, {"expected": -1}],
)  # fmt: skip
def test_what_cannot_work_is_refused_and_nothing_is_listed(
    client: rmq.Client, given: dict[str, object]
) -> None:
    bury(client, 1)

    with pytest.raises(rmq.ConfigurationError):
        client.admin.job_start("orders", **given)  # type: ignore[arg-type]

    assert client.admin.jobs() == []


@pytest.mark.parametrize("id", ["orders.00000000", "nothing.00000000"])
def test_a_job_that_is_not_there_is_told(client: rmq.Client, id: str) -> None:
    for verb in ("job", "job_pause", "job_resume", "job_stop", "job_run"):
        with pytest.raises(rmq.JobNotFound):
            getattr(client.admin, verb)(id)


def test_a_job_of_a_deleted_topic_leaves_the_list(
    server: Redis, client: rmq.Client, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bury(client, 1)
    job = client.admin.job_start("orders")
    client.admin.topic_delete("orders", force=True)
    monkeypatch.setattr(flows, "STARTING_S", -2)

    with serving(server.url, prefix):
        until(lambda: not server.raw().zcard(f"{prefix}:jobs"), "the list")

    with pytest.raises(rmq.JobNotFound):
        client.admin.job(job.id)
    assert server.raw().keys(f"{prefix}:{{orders}}:*") == []


def test_a_purge_as_a_job_can_be_undone_until_the_server_empties_the_trash(
    server: Redis, client: rmq.Client, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey, "EVERY_MIN_S", 0.2)
    monkeypatch.setattr(topic_admin_service, "WITH_DEAD_S", 0.2)
    monkeypatch.setattr(topic_admin_service.Retention, "every_s", 0.1)
    bury(client, 10, "a", slots=2)
    bury(client, 5, "b")
    died = {message.id: message.died for message in client.admin.peek("orders", 20, "dead")}

    started = client.admin.job_start("orders", "purge", conditions={"error": "a"}, keep=60)
    assert client.admin.job_run(started.id).done == 10
    assert (client.admin.stats("orders")["trash"], client.admin.stats("orders")["dead"]) == (10, 5)
    assert client.admin.restore("orders", error="a") == 10
    assert died == {m.id: m.died for m in client.admin.peek("orders", 20, "dead")}

    assert client.admin.purge("orders", "dead", keep=0.01) == 15
    with serving(server.url, prefix):
        slots = [f"{prefix}:{{orders_{index}}}:trash" for index in range(2)]
        until(lambda: not server.raw().exists(*slots), "the trash")
    assert client.admin.stats("orders")["purged"] == 15
    assert client.admin.restore("orders") == 0
