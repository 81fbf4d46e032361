"""`rmq.django.TaskBackend`: enqueue, run and read the results of django.tasks."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import rmq
from tests.conftest import Clock
from tests.integration.working import work
from tests.integrations.conftest import Make
from tests.patience import wait_for


def here() -> str:
    """Name of the worker of this process, which may be a fork."""
    return f"{socket.gethostname()}:{os.getpid()}"


def run(backend: Any, *results: Any, concurrency: int | None = None, **options: Any) -> None:
    """Run a worker until the tasks have ended, and read their results."""

    def ended() -> bool:
        for result in results:
            result.refresh()
        return all(result.is_finished for result in results)

    work(backend.register(["default"], concurrency), ended, **options)


def errors(result: Any) -> list[tuple[str, str]]:
    """The class path and the last line of each error."""
    return [(each.exception_class_path, each.traceback.splitlines()[-1]) for each in result.errors]


def status(backend: Any, id: str) -> str:
    return str(backend.get_result(id).status)


def no_result(backend: Any, id: str) -> bool:
    from rmq.integrations.django.tasks_api import TaskResultDoesNotExist

    try:
        backend.get_result(id)
    except TaskResultDoesNotExist:
        return True
    return False


def test_a_task_runs_and_its_result_has_what_django_asks_for(backend: Any, tasks: Any) -> None:
    result = tasks.add.enqueue(1, b=2)

    assert (result.status, result.is_finished, result.attempts) == ("READY", False, 0)
    assert tasks.add.get_result(result.id) == result
    assert result.id.startswith("default:")
    assert len(result.id) <= 64
    before = result.enqueued_at
    run(backend, result)

    assert (result.status, result.return_value, result.args) == ("SUCCESSFUL", 3, [1])
    assert (result.kwargs, result.errors, result.worker_ids) == ({"b": 2}, [], [here()])
    assert before == result.enqueued_at
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert result.last_attempted_at is not None
    assert tasks.DONE == [(1, 2)]
    assert result.task.func is tasks.add.func


@pytest.mark.usefixtures("sync_thread")
def test_an_async_task_runs_and_async_programs_use_the_backend(backend: Any, tasks: Any) -> None:
    async def enqueue() -> Any:
        result = await tasks.add_async.aenqueue(4)
        assert (await tasks.add_async.aget_result(result.id)).status == "READY"
        return result

    result = asyncio.run(enqueue())
    run(backend, result)

    assert result.return_value == 5


def test_a_failed_task_has_its_error_and_is_a_dead_letter(backend: Any, tasks: Any) -> None:
    own, builtin, odd = (
        tasks.fail.enqueue("order 7"), tasks.fail_builtin.enqueue(), tasks.return_set.enqueue(),
    )  # fmt: skip
    run(backend, own, builtin, odd)

    path = "tests.integrations.shop.tasks.NoSuchOrder"
    assert errors(own) == [(path, f"{path}: order 7")]
    assert own.errors[0].exception_class is tasks.NoSuchOrder
    assert "in fail" in own.errors[0].traceback
    assert errors(builtin) == [("builtins.KeyError", "KeyError: 'missing'")]
    assert [path for path, _ in errors(odd)] == ["builtins.TypeError"]
    assert (own.status, own.args, own.worker_ids) == ("FAILED", ["order 7"], [here()])
    assert own.started_at <= own.finished_at
    letters = backend.client.admin.peek("default", queue="dead")
    assert {each.type.rpartition(".")[2] for each in letters} == {
        "fail", "fail_builtin", "return_set",
    }  # fmt: skip
    with pytest.raises(ValueError, match="Task failed"):
        _ = own.return_value


def test_retries_are_an_option_of_the_task_and_of_the_backend(
    make_backend: Make, tasks: Any
) -> None:
    backend = make_backend(retries=1, topic={"retry": "immediate"})
    third = tasks.attempts.using(retries=2).enqueue(3)
    second, never = tasks.attempts.enqueue(2), tasks.attempts.enqueue(9)
    run(backend, third, second, never)

    assert (third.status, third.return_value, third.attempts) == ("SUCCESSFUL", 3, 3)
    assert [line.rpartition(": ")[2] for _, line in errors(third)] == ["attempt 1", "attempt 2"]
    assert third.task.retries == 2
    assert (second.status, second.attempts, len(second.errors)) == ("SUCCESSFUL", 2, 1)
    assert (never.status, never.attempts, len(never.errors)) == ("FAILED", 2, 2)
    assert (3, 2, 3) in tasks.DONE


def test_a_task_that_exits_has_failed_and_is_retried(make_backend: Make, tasks: Any) -> None:
    backend = make_backend(topic={"retry": "immediate"})
    once, twice = tasks.exit_process.enqueue(), tasks.exit_process.using(retries=1).enqueue()
    run(backend, once, twice)

    assert errors(once) == [("builtins.SystemExit", "SystemExit: no")]
    assert errors(twice) == errors(once) * 2


def test_a_task_is_not_run_before_its_time(backend: Any, tasks: Any, clock: Clock) -> None:
    at = datetime.fromtimestamp(clock.now_ms / 1000, UTC) + timedelta(hours=1)
    result = tasks.add.using(run_after=at).enqueue(1)

    with backend.topic("default").consumer() as consumer:
        assert consumer.receive(wait=0) == []
        assert tasks.add.get_result(result.id).task.run_after == at
        clock.advance(3601)
        assert [str(d.id) for d in consumer.receive(wait=0)] == [result.id.partition(":")[2]]


def test_larger_priorities_run_first(backend: Any, tasks: Any) -> None:
    given = (0, 100, -100, 1, 99, -99, -1)
    results = [tasks.add.using(priority=each).enqueue(each) for each in given]
    run(backend, *results, concurrency=1)

    assert [a for a, _ in tasks.DONE] == sorted(given, reverse=True)
    assert [result.task.priority for result in results] == list(given)


def test_a_dedup_key_enqueues_a_task_once_and_returns_its_result(backend: Any, tasks: Any) -> None:
    from rmq.integrations.django.tasks_api import task_enqueued

    ids: list[str] = []

    def note(task_result: Any, **_: Any) -> None:
        ids.append(task_result.id)

    task = tasks.add.using(dedup_key="order 7")
    task_enqueued.connect(note)
    try:
        first, second, other = task.enqueue(1), task.enqueue(2), tasks.add.enqueue(3)
        assert (second.id, second.args, second.status) == (first.id, [1], "READY")
        assert first.enqueued_at == second.enqueued_at
        run(backend, first, other)
        third = task.enqueue(4)
    finally:
        task_enqueued.disconnect(note)

    assert ids == [first.id, other.id]
    assert (third.id, third.status, third.return_value) == (first.id, "SUCCESSFUL", 2)
    assert third.enqueued_at == second.enqueued_at <= third.started_at
    assert sorted(tasks.DONE) == [(1, 1), (3, 1)]


def test_a_dedup_key_of_a_task_whose_result_is_not_kept(make_backend: Make, tasks: Any) -> None:
    backend = make_backend(results=None, topic={"groups": rmq.Groups()})
    task = tasks.add.using(dedup_key="order 7", group="ann")
    first = task.enqueue(1)
    work(backend.register(["default"]), lambda: no_result(backend, first.id))
    second = task.enqueue(2)

    assert (second.id, tasks.DONE) == (first.id, [(1, 1)])
    with pytest.raises(rmq.InvalidValue, match="dedup_key"):
        tasks.add.using(dedup_key="x" * 201).enqueue(1)


def test_the_tasks_of_a_group_need_topics_with_groups(make_backend: Make, tasks: Any) -> None:
    from rmq.integrations.django.tasks_api import InvalidTask

    make_backend()
    with pytest.raises(InvalidTask, match="no groups"):
        tasks.add.using(group="ann")
    with pytest.raises(InvalidTask, match="0 to 16"):
        tasks.add.using(retries=17)
    backend = make_backend(topic={"groups": rmq.Groups()})
    result = tasks.add.using(group="ann").enqueue(1)

    assert backend.topic("default").get(result.id.partition(":")[2]).group == "ann"
    run(backend, result)
    assert result.task.group == "ann"


def test_a_running_task_has_its_worker(backend: Any, tasks: Any) -> None:
    result = tasks.wait.enqueue()

    def is_running() -> bool:
        result.refresh()
        return result.status == "RUNNING" and result.started_at is not None

    with rmq.Worker(backend.register(["default"]), heartbeat="thread"):
        wait_for(is_running)
        assert (result.worker_ids, result.is_finished) == ([here()], False)
        tasks.GO.set()
        wait_for(lambda: status(backend, result.id) == "SUCCESSFUL")


def test_a_dead_worker_is_an_attempt_with_an_error(
    make_backend: Make, tasks: Any, clock: Clock
) -> None:
    backend = make_backend(topic={"retry": "immediate"})
    result = tasks.add.enqueue(1)
    topic = backend.topic("default")
    with topic.consumer(lease=5) as consumer:
        assert len(consumer.receive(wait=0)) == 1
        clock.advance(6)
        (d,) = consumer.receive(wait=0)
        d.reject("why")
        result.refresh()

    assert [each.exception_class_path for each in result.errors] == [
        "rmq.errors.LeaseLost", "rmq.errors.DeliveryError",
    ]  # fmt: skip
    assert (result.status, result.attempts) == ("FAILED", 2)


def test_signals_are_sent(backend: Any, tasks: Any) -> None:
    from rmq.integrations.django import tasks_api

    seen: list[tuple[str, str]] = []

    def hear(word: str) -> Callable[..., None]:
        def receive(task_result: Any, sender: Any, **_: Any) -> None:
            assert sender is type(backend)
            seen.append((word, str(task_result.status)))

        return receive

    words = ("enqueued", "started", "finished")
    receivers = {getattr(tasks_api, f"task_{word}"): hear(word) for word in words}
    for signal, receiver in receivers.items():
        signal.connect(receiver)
    try:
        run(backend, tasks.add.enqueue(1), concurrency=1)
        failed = tasks.fail.enqueue("no")
        work(backend.client, lambda: status(backend, failed.id) == "FAILED")
    finally:
        for signal, receiver in receivers.items():
            signal.disconnect(receiver)

    good = [("enqueued", "READY"), ("started", "RUNNING"), ("finished", "SUCCESSFUL")]
    assert seen == [*good, *good[:2], ("finished", "FAILED")]


def test_unknown_results_do_not_exist(backend: Any, tasks: Any) -> None:
    result = tasks.add.enqueue(1)
    text = result.id.partition(":")[2]
    backend.topic("other").open()
    other = backend.topic("other").new_id()

    for id in ("", "x", text, f"missing:{text}", f"other:{text}", f"other:{other}", f"a b:{text}"):
        assert no_result(backend, id), id
    sent = backend.topic("other").send({"no": "task"})
    assert no_result(backend, f"other:{sent.id}")
    backend.topic("default").cancel(text)
    assert no_result(backend, result.id)


def test_without_results_a_successful_task_leaves_nothing(make_backend: Make, tasks: Any) -> None:
    backend = make_backend(results=None)
    result = tasks.add.enqueue(1)
    work(backend.register(["default"]), lambda: no_result(backend, result.id))

    assert tasks.DONE == [(1, 1)]


def test_a_task_that_the_worker_does_not_have_becomes_a_dead_letter(
    make_backend: Make, tasks: Any
) -> None:
    backend = make_backend(topic={"max_retries": 1, "retry": "immediate"})
    body = {"args": [], "kwargs": {}}
    backend.topic("default").send(body, type="tests.integrations.shop.tasks.gone")
    backend.topic("default").send(body, type="tests.integrations.shop.tasks.NoSuchOrder")
    good = body | {"args": [5]}  # from a program without Django, with another range of priorities
    sent = backend.topic("default").send(
        good, type="tests.integrations.shop.tasks.add", keep_result=60
    )
    admin = backend.client.admin
    work(backend.register(["default"]), lambda: admin.stats("default")["dead"] == 2)

    found = sorted(each.failure.error for each in admin.peek("default", queue="dead"))
    assert "does not define" in found[0]
    assert "is no task" in found[1]
    assert tasks.DONE == [(5, 1)]
    assert backend.get_result(f"default:{sent.id}").task.priority == -100


def test_the_backend_says_what_it_can_do_and_what_is_wrong(make_backend: Make) -> None:
    from django.core.exceptions import ImproperlyConfigured

    backend = make_backend(("ok", "not ok", "x" * 38))

    assert all(
        getattr(backend, f"supports_{what}")
        for what in ("defer", "async_task", "get_result", "priority")
    )
    assert [each.id for each in backend.check()] == ["rmq.E001"] * 2
    for options, text in (({"urls": 1}, "no option 'urls'"), ({"url": "http://x"}, "url")):
        with pytest.raises(ImproperlyConfigured, match=text):
            make_backend(**options)


def test_the_backends_of_all_threads_share_a_client_and_its_topics(backend: Any) -> None:
    from rmq.integrations.django.tasks_api import task_backends

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(lambda: task_backends["default"]).result()

    assert other is not backend
    assert other.client is backend.client
    assert other.topic("default") is backend.topic("default")
