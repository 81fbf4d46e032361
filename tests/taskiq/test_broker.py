"""The broker and the receiver of taskiq in one process, on a real server."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner
from taskiq import (
    Context,
    SimpleRetryMiddleware,
    SmartRetryMiddleware,
    TaskiqDepends,
)
from taskiq.depends.progress_tracker import ProgressTracker
from taskiq.exceptions import NoResultError
from taskiq.serializers import MSGPackSerializer

import rmq
from rmq.cli import cli
from rmq.errors import InvalidValue
from rmq.integrations.taskiq import inbox as inboxes
from rmq.taskiq import Broker
from tests.patience import PATIENCE_S
from tests.taskiq.conftest import working


async def until(what, why="it did not come to pass"):
    """Wait until a function or coroutine function returns something true, and return it."""
    end = time.monotonic() + PATIENCE_S
    while True:
        found = what()
        found = await found if asyncio.iscoroutine(found) else found
        if found or time.monotonic() > end:
            assert found, why
            return found
        await asyncio.sleep(0.01)


async def left(broker):
    """How many messages of the topic are in each state, without those that there are none of."""
    stats = await broker.client.admin.stats(broker.queue_name)
    stats["waiting"] = sum(stats[state] for state in ("retries", "priority", "due", "later"))
    return {state: stats[state] for state in ("waiting", "in_flight", "dead") if stats[state]}


async def dead(broker):
    page = await broker.client.admin.dead_letters(broker.queue_name)
    return list(page.messages)


async def waiting(broker):
    """The one message that waits."""
    (message,) = await broker.client.admin.peek(broker.queue_name)
    return message


async def test_a_task_runs_and_its_result_and_progress_come_back(broker):
    @broker.task
    async def add(a: int, b: int, tracker: ProgressTracker[str] = TaskiqDepends()) -> int:
        await tracker.set_progress("half", "of it")
        return a + b

    @broker.task
    def fail() -> None:
        raise LookupError("no order 7")

    async with working(broker):
        added = await add.kiq(1, b=2)
        failed = await fail.kiq()
        assert (await added.wait_result(0.01, timeout=PATIENCE_S)).return_value == 3
        assert (await added.get_progress()).meta == "of it"
        result = await failed.wait_result(0.01, timeout=PATIENCE_S)
        await until(lambda: _is_empty(broker))

    assert result.is_err
    with pytest.raises(LookupError, match="no order 7"):
        result.raise_for_error()


async def _is_empty(broker):
    return not await left(broker)


async def test_labels_become_options_of_the_message(make_broker):
    broker = make_broker(groups=rmq.Groups())
    due = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)

    @broker.task(task_name="shop:make bread", priority=900)
    async def bread(flour: str) -> None: ...

    async def sent(**labels):
        await bread.kicker().with_labels(**labels).kiq("rye")
        message = await waiting(broker)
        await broker.client.admin.purge(broker.queue_name, "waiting")
        return message

    message = await sent(group="oven", dedup_key="bread-7")
    assert (message.type, message.priority, message.group) == ("shop:make_bread", 900, "oven")
    assert (message.body["task_name"], message.body["args"]) == ("shop:make bread", ["rye"])
    assert (await sent(at=due)).due == due
    assert (await sent(at=int(due.timestamp() * 1000), delay=None)).due == due
    delayed = await sent(delay=3600.5)
    assert 3590 < (delayed.due - datetime.now(UTC)).total_seconds() < 3601


async def test_groups_of_a_topic_are_read_once(make_broker, monkeypatch):
    broker = make_broker(groups=rmq.Groups())
    opened, open_topic = [], rmq.AsyncTopic.open

    def noting(topic, *given):
        opened.append(topic.name)
        return open_topic(topic, *given)

    monkeypatch.setattr(rmq.AsyncTopic, "open", noting)

    @broker.task
    async def task() -> None: ...

    for _ in range(3):
        await task.kicker().with_labels(group="oven").kiq()

    assert opened == [broker.queue_name]


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        ({"delay": "soon"}, "label delay: 'soon'; give a number of seconds"),
        ({"delay": -1}, "label delay: '-1'; give a number of seconds"),
        ({"delay": float("nan")}, "label delay: 'nan'; give a number of seconds"),
        ({"delay": timedelta(minutes=1)}, "label delay: '0:01:00'; give a number of seconds"),
        ({"at": "tomorrow"}, "label at: 'tomorrow'; give an aware datetime"),
        ({"at": datetime(2030, 1, 1)}, "label at: '2030-01-01 00:00:00'; give an aware datetime"),
        ({"priority": "high"}, "label priority: 'high'; give a number from 17 to 1048575"),
        ({"priority": 16}, "label priority: '16'; give a number from 17 to 1048575"),
        ({"group": ""}, "label group: ''; give a text of 1 to 200 bytes"),
        ({"group": "g" * 201}, "give a text of 1 to 200 bytes"),
        ({"dedup_key": "ü" * 101}, "give a text of 1 to 200 bytes"),
        ({"group": "a"}, "label group: 'a', but the topic 't.*' has no groups; give Broker"),
        ({"delay": 1, "at": 1_900_000_000_000}, "labels delay and at: a task has both; give one"),
    ],
)
async def test_a_wrong_label_is_an_error_of_kiq_that_says_what_to_give(broker, labels, text):
    @broker.task
    async def task() -> None: ...

    with pytest.raises(InvalidValue, match=text):
        await task.kicker().with_labels(**labels).kiq()

    await broker.startup()
    assert await left(broker) == {}


async def test_a_dedup_key_keeps_one_task_and_a_queue_name_selects_the_topic(broker, name):
    @broker.task
    async def task() -> None: ...

    for _ in range(2):
        await task.kicker().with_labels(dedup_key="once").kiq()
    await task.kicker().with_labels(queue_name=f"{name}-slow").kiq()

    assert await left(broker) == {"waiting": 1}
    assert len(await broker.client.admin.peek(f"{name}-slow")) == 1


# --- acks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ack_type", "begun", "saving"),
    [
        ("when_received", {}, {}),
        ("when_executed", {"in_flight": 1}, {}),
        ("when_saved", {"in_flight": 1}, {"in_flight": 1}),
        (None, {"in_flight": 1}, {"in_flight": 1}),  # the worker's default is when_saved
        ("manual", {"in_flight": 1}, {}),
    ],
)
async def test_each_ack_type_acks_at_its_time(broker, ack_type, begun, saving):
    seen = {}

    async def at_save(task_id, result, set_result=broker.result_backend.set_result):
        seen["saving"] = await left(broker)
        await set_result(task_id, result)

    broker.result_backend.set_result = at_save

    @broker.task(ack_type=ack_type) if ack_type else broker.task
    async def task(context: Context = TaskiqDepends()) -> None:
        seen["begun"] = await left(broker)
        if ack_type == "manual":
            await context.ack()

    async with working(broker):
        await task.kiq()
        await until(lambda: "saving" in seen)
        await until(lambda: _is_empty(broker))

    assert seen == {"begun": begun, "saving": saving}


async def test_a_task_that_is_acked_by_hand_is_retried_at_once_if_it_raises(make_broker):
    broker = make_broker(max_retries=2)
    runs = []

    @broker.task(ack_type="manual")
    async def task(context: Context = TaskiqDepends()) -> None:
        runs.append(context.is_acked)
        raise LookupError("no order 7")

    async with working(broker):
        await task.kiq()
        (letter,) = await until(lambda: dead(broker))

    assert runs == [False] * 3
    assert "LookupError: no order 7" in str(letter.failure)


async def test_a_task_that_nobody_acks_by_hand_runs_again_after_its_lease(make_broker):
    broker = make_broker(lease=1)
    runs = []

    @broker.task(ack_type="manual")
    async def task(context: Context = TaskiqDepends()) -> None:
        runs.append(time.monotonic())
        if len(runs) == 2:
            await context.ack()

    async with working(broker):
        await task.kiq()
        await until(lambda: _is_empty(broker))

    assert len(runs) == 2
    assert runs[1] - runs[0] > 0.9


async def test_tasks_that_end_together_are_acked_together(broker, monkeypatch):
    calls, ack = [], rmq.AsyncConsumer.ack

    async def counted(self, deliveries):
        calls.append(len(deliveries))
        return await ack(self, deliveries)

    monkeypatch.setattr(rmq.AsyncConsumer, "ack", counted)
    go, begun = asyncio.Event(), []

    @broker.task
    async def task(number: int) -> None:
        begun.append(number)
        await go.wait()

    async with working(broker, max_async_tasks=8):
        await asyncio.gather(*(task.kiq(number) for number in range(8)))
        await until(lambda: len(begun) == 8)
        go.set()
        await until(lambda: _is_empty(broker))

    assert sum(calls) == 8
    assert len(calls) <= 4


async def test_an_ack_that_cannot_reach_redis_is_repeated(make_broker, monkeypatch):
    broker, runs, ack = make_broker(lease=1), [], rmq.AsyncConsumer.ack

    async def failing(self, deliveries):
        monkeypatch.setattr(rmq.AsyncConsumer, "ack", ack)
        raise rmq.Unavailable("no Redis")

    monkeypatch.setattr(rmq.AsyncConsumer, "ack", failing)

    @broker.task
    async def task() -> None:
        runs.append(1)

    async with working(broker):
        await task.kiq()
        await until(lambda: runs)
        assert await left(broker) == {"in_flight": 1}
        await until(lambda: _is_empty(broker))

    assert runs == [1]


async def test_a_failed_task_is_acked_and_a_rejected_one_is_a_dead_letter(broker):
    @broker.task
    async def fail() -> None:
        raise LookupError("no order 7")

    @broker.task
    async def reject(number: int, context: Context = TaskiqDepends()) -> None:
        context.reject()

    async with working(broker):
        await fail.kiq()
        await reject.kiq(7)
        (letter,) = await until(lambda: dead(broker))
        await until(lambda: _has_only(broker, {"dead": 1}))

    assert letter.body["args"] == [7]
    assert "TaskRejectedError" in str(letter.failure)


async def _has_only(broker, counts):
    return await left(broker) == counts


@pytest.mark.parametrize("retry", [SimpleRetryMiddleware, SmartRetryMiddleware])
async def test_with_keep_failed_only_the_last_failure_is_a_dead_letter(make_broker, retry):
    broker = make_broker(keep_failed=True)
    options = {"default_delay": 0.01} if retry is SmartRetryMiddleware else {}
    broker.add_middlewares(retry(default_retry_count=3, default_retry_label=True, **options))
    runs = []

    @broker.task(dedup_key="once", at=datetime.now(UTC), priority=500)
    async def fail() -> None:
        runs.append(1)
        raise LookupError("no order 7")

    @broker.task
    async def skip() -> None:
        runs.append(2)
        raise NoResultError

    async with working(broker):
        failed = await fail.kiq()
        await skip.kiq()
        result = await failed.wait_result(0.01, timeout=PATIENCE_S)
        (letter,) = await until(lambda: dead(broker))
        await until(lambda: _has_only(broker, {"dead": 1}))

    assert sorted(runs) == [1, 1, 1, 2]  # no retry was a duplicate of the task that it retries
    assert result.is_err
    assert letter.type.endswith(":fail")
    assert letter.priority == 500
    assert "LookupError: no order 7" in str(letter.failure)


async def test_a_requeued_task_with_a_dedup_key_is_not_lost(broker):
    runs = []

    @broker.task(dedup_key="once")
    async def task(context: Context = TaskiqDepends()) -> None:
        runs.append(1)
        if len(runs) < 3:
            await context.requeue()

    async with working(broker):
        sent = await task.kiq()
        await sent.wait_result(0.01, timeout=PATIENCE_S)

    assert len(runs) == 3


# --- messages that are no tasks ------------------------------------------------------------------


async def test_what_is_no_task_becomes_a_dead_letter_and_stops_nobody(make_broker):
    broker = make_broker(max_retries=1)

    @broker.task
    async def task(number: int) -> None: ...

    await broker.startup()
    topic = broker.client.topic(broker.queue_name)
    labels = {"labels": {"n": "x"}, "labels_types": {"n": 2}, "args": [], "kwargs": {}}
    for body in ([1, 2], {"order": 7}, {"task_id": "1", "task_name": "t", **labels}):
        await topic.send(body)
    await broker.client.topic(broker.queue_name, codec="bytes").send(b"\xff\x00")
    await topic.send({"task_name": "shop:gone"})
    async with working(broker):
        sent = await task.kiq(1)
        await sent.wait_result(0.01, timeout=PATIENCE_S)
        letters = await until(lambda: _five(broker))

    reasons = sorted(str(letter.failure).partition(" attempt")[0] for letter in letters)
    assert sum("ValidationError" in reason for reason in reasons) == 2, reasons
    assert sum("UnicodeDecodeError" in reason for reason in reasons) == 1
    assert sum("ValueError" in reason for reason in reasons) >= 1
    assert sum("this worker has no task 'shop:gone'" in reason for reason in reasons) == 1


async def _five(broker):
    letters = await dead(broker)
    return letters if len(letters) == 5 else None


async def test_a_message_of_a_program_without_taskiq_is_a_task(broker):
    ran = []

    @broker.task(task_name="shop:clean")
    async def clean(number: int, *, context: Context = TaskiqDepends()) -> None:
        ran.append((number, context.message.task_id))

    broker = broker.with_serializer(MSGPackSerializer())
    await broker.startup()
    topic = broker.client.topic(broker.queue_name)
    ids = [(await topic.send({"task_name": "shop:clean", "args": [n]})).id for n in range(2)]
    async with working(broker):
        await until(lambda: len(ran) == 2)

    assert sorted(ran) == [(0, str(ids[0])), (1, str(ids[1]))]


@pytest.mark.parametrize("serializer", [None, MSGPackSerializer()])
async def test_arguments_arrive_as_they_were_sent(broker, serializer):
    given = [{"ü": [1, 2.5, None]}, 2**70 if serializer is None else 2**60, "\ud800"]
    if serializer is not None:
        broker = broker.with_serializer(serializer)
        del given[2]  # msgpack has no lone surrogates

    @broker.task
    async def echo(value: object) -> str:
        return repr(value)

    async with working(broker):
        sent = [await echo.kiq(value) for value in given]
        results = [await each.wait_result(0.01, timeout=PATIENCE_S) for each in sent]

    assert [result.return_value for result in results] == [repr(value) for value in given]


# --- leases, prefetch and shutdown ---------------------------------------------------------------


async def runs_of_a_task_of_three_leases(make_broker):
    brokers, runs = [make_broker(lease=1), make_broker(lease=1)], []

    async def long() -> None:
        runs.append("began")
        await asyncio.sleep(3)
        runs.append("ended")

    tasks = [each.task(task_name="long")(long) for each in brokers]
    async with working(brokers[0]), working(brokers[1]):
        await tasks[0].kiq()
        await until(lambda: "ended" in runs)
        found = list(runs)
    return found


async def test_a_task_of_three_leases_runs_once(make_broker):
    """taskiq-redis#101, open: a task longer than idle_timeout runs a second time."""
    assert await runs_of_a_task_of_three_leases(make_broker) == ["began", "ended"]


async def test_without_renewal_a_task_of_three_leases_runs_twice(make_broker, monkeypatch):
    async def renew_nothing(self):
        await asyncio.sleep(PATIENCE_S)

    monkeypatch.setattr(inboxes.Inbox, "_renew", renew_nothing)
    found = await runs_of_a_task_of_three_leases(make_broker)

    assert found.count("began") > 1


async def test_a_busy_worker_gives_messages_to_others_and_a_stop_gives_back_the_rest(make_broker):
    broker, other = make_broker(), make_broker()

    @broker.task
    async def task(number: int) -> None: ...

    await asyncio.gather(*(task.kiq(number) for number in range(20)))
    tasks = broker.listen()
    for _ in range(5):  # batches of 1, 2 and 4
        await anext(tasks)
    assert (await left(broker))["in_flight"] == 7
    await until(lambda: _in_flight(broker, 5), "the two others stay here")

    await anext(tasks)
    await tasks.aclose()
    assert (await left(broker))["in_flight"] == 6
    await broker.shutdown()
    assert await left(other) == {"waiting": 20}
    messages = await other.client.admin.peek(other.queue_name, limit=20)
    assert {message.failure for message in messages} == {None}


async def _in_flight(broker, count):
    return (await left(broker)).get("in_flight") == count


async def test_a_deleted_topic_is_made_again_by_sender_and_worker(broker):
    @broker.task
    async def task(number: int) -> int:
        return number

    async with working(broker):
        for number in range(3):
            sent = await task.kiq(number)
            await sent.wait_result(0.01, timeout=PATIENCE_S)
            await until(lambda: _is_empty(broker))
            await broker.client.admin.topic_delete(broker.queue_name)


async def test_a_broker_starts_again_after_its_shutdown(broker):
    @broker.task
    async def task() -> int:
        return 1

    for _ in range(2):
        async with working(broker):
            sent = await task.kiq()
            assert (await sent.wait_result(0.01, timeout=PATIENCE_S)).return_value == 1
        await broker.shutdown()


def test_a_wrong_argument_of_the_broker_is_named():
    with pytest.raises(InvalidValue, match="prefetch: 0; give 1 to 1000"):
        Broker(prefetch=0)
    with pytest.raises(InvalidValue, match="topic"):
        Broker(queue_name="no topic")
    with pytest.raises(rmq.ConfigurationError):
        Broker("http://localhost")


async def test_the_command_line_shows_name_and_arguments_of_a_task(broker, server):
    @broker.task(task_name="shop:bake")
    async def bake(flour: str, *, grams: int, context: Context = TaskiqDepends()) -> None:
        context.reject()

    async with working(broker):
        await bake.kiq("rye", grams=500)
        await until(lambda: dead(broker))
    words = ["--url", server.url, "dlq", "ls", broker.queue_name]
    shown = await asyncio.to_thread(CliRunner().invoke, cli, words)

    assert shown.exit_code == 0, shown.output
    assert "shop:bake" in shown.output
    shown = await asyncio.to_thread(CliRunner().invoke, cli, [*words, "--json"])
    letter = json.loads(shown.output)
    assert letter["type"] == "shop:bake"
    assert (letter["body"]["args"], letter["body"]["kwargs"]) == (["rye"], {"grams": 500})


async def test_an_ack_at_the_time_of_a_renewal_settles(make_broker, monkeypatch, caplog):
    extend, leases = rmq.AsyncConsumer.extend, itertools.cycle((10, 20))

    async def renew(consumer, deliveries):  # each renewal changes the receipts
        return await extend(consumer, deliveries, next(leases))

    monkeypatch.setattr(rmq.AsyncConsumer, "extend", renew)
    monkeypatch.setattr(inboxes, "RENEW_PARTS", 100_000)  # renewals come one after another
    broker = make_broker()

    @broker.task
    async def work() -> None:
        await asyncio.sleep(0.01)

    for _ in range(100):
        await work.kiq()
    async with working(broker):
        await until(lambda: _is_settled(broker, 100), "tasks are not settled")

    assert "lease" not in caplog.text


async def _is_settled(broker, count):
    return (await broker.client.admin.stats(broker.queue_name))["settled"] == count
