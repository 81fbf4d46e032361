"""Tasks that are enqueued inside of `atomic()`: sent if and only if the transaction commits."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest

import rmq
from tests.integration.working import work
from tests.integrations.conftest import Make
from tests.integrations.test_django_backend import here, no_result, status


class Undo(Exception):
    """Rolls a block of `atomic()` back."""


@pytest.fixture
def backend(make_backend: Make, shop_db: str) -> Any:
    return make_backend(("default",), outbox="default", topic={"groups": rmq.Groups()})


def waiting(backend: Any) -> list[Any]:
    """The arguments of the tasks in Redis."""
    try:
        messages = list(backend.client.admin.peek("default"))
    except rmq.TopicNotFound:
        return []
    return [message.body["args"] for message in messages]


def test_a_task_is_sent_after_the_commit(backend: Any, tasks: Any) -> None:
    from django.db import transaction

    with transaction.atomic():
        result = tasks.add.enqueue(1, b=2)
        assert status(backend, result.id) == "READY"
    before = tasks.add.get_result(result.id)
    assert (before, waiting(backend)) == (result, [])

    assert backend.relay().run_once() == 1

    assert waiting(backend) == [[1]]
    assert tasks.add.get_result(result.id) == result
    work(backend.register(["default"]), lambda: status(backend, result.id) == "SUCCESSFUL")
    result.refresh()
    assert (result.return_value, result.worker_ids) == (3, [here()])
    assert result.enqueued_at == before.enqueued_at


def test_a_rolled_back_task_does_not_exist(backend: Any, tasks: Any) -> None:
    from django.db import transaction

    with suppress(Undo), transaction.atomic():
        result = tasks.add.enqueue(1)
        raise Undo

    assert no_result(backend, result.id)
    assert backend.relay().run_once() == 0
    assert no_result(backend, result.id)


def test_a_savepoint_takes_its_tasks_with_it(backend: Any, tasks: Any) -> None:
    from django.db import transaction

    with transaction.atomic():
        with suppress(Undo), transaction.atomic():
            undone = tasks.add.enqueue("inner, undone")
            raise Undo
        with transaction.atomic():
            tasks.add.enqueue("inner")
        tasks.add.enqueue("outer")
    backend.relay().run_once()

    assert sorted(waiting(backend)) == [["inner"], ["outer"]]
    assert no_result(backend, undone.id)


def test_a_task_outside_of_a_transaction_is_sent_at_once(backend: Any, tasks: Any) -> None:
    result = tasks.add.enqueue(1)

    assert waiting(backend) == [[1]]
    assert status(backend, result.id) == "READY"


def test_the_options_of_a_task_go_through_the_outbox(backend: Any, tasks: Any) -> None:
    from django.db import transaction

    at = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    task = tasks.attempts.using(group="ann", priority=7, run_after=at, retries=3)
    with transaction.atomic():
        result = task.enqueue(1)

    for sent in (0, 1):
        found = tasks.attempts.get_result(result.id)
        assert (found.status, found.args, found.task) == ("READY", [1], result.task), sent
        assert backend.relay().run_once() == 1 - sent


def test_a_dedup_key_is_refused_inside_of_a_transaction(backend: Any, tasks: Any) -> None:
    from django.db import transaction

    from rmq.integrations.django.tasks_api import InvalidTask

    task = tasks.add.using(dedup_key="order 7")
    with transaction.atomic(), pytest.raises(InvalidTask, match="inside of atomic"):
        task.enqueue(1)
    with transaction.atomic():
        transaction.on_commit(lambda: task.enqueue(2))

    assert waiting(backend) == [[2]]


def test_the_context_of_a_task_has_the_id_that_enqueue_returned(backend: Any, tasks: Any) -> None:
    from django.db import transaction

    from rmq.integrations.django.tasks_api import task_started

    ids: list[str] = []

    def note(task_result: Any, **_: Any) -> None:
        ids.append(task_result.id)

    with transaction.atomic():
        result = tasks.fail.enqueue("no")
    backend.relay().run_once()
    task_started.connect(note)
    try:
        work(backend.register(["default"]), lambda: status(backend, result.id) == "FAILED")
    finally:
        task_started.disconnect(note)

    assert ids == [result.id]


def test_a_task_that_can_never_be_sent_has_failed(
    make_backend: Make, tasks: Any, shop_db: str
) -> None:
    from django.db import transaction

    backend = make_backend(("default",), outbox="default", topic={"max_body": 1000})
    with transaction.atomic():
        result = tasks.add.enqueue("x" * 2000)
    backend.relay().run_once()

    result.refresh()
    assert result.status == "FAILED"
    assert "max_body" in result.errors[0].traceback
    assert issubclass(result.errors[0].exception_class, rmq.SendError)


def test_the_relay_is_a_command(backend: Any, tasks: Any, make_backend: Make) -> None:
    from django.core.management import CommandError, call_command
    from django.db import transaction

    with transaction.atomic():
        tasks.add.enqueue(1)
    call_command("rmq_relay", "--once", stdout=StringIO())
    assert waiting(backend) == [[1]]

    make_backend()
    with pytest.raises(CommandError, match="no option 'outbox'"):
        call_command("rmq_relay", "--once", stdout=StringIO())


def test_checks_find_an_outbox_that_cannot_work(make_backend: Make, name: str) -> None:
    from django.test.utils import override_settings

    from rmq.integrations.django.tasks_api import task_backends

    assert [each.id for each in make_backend(outbox="missing").check()] == ["rmq.E002"]
    without_queues = make_backend(outbox="default", topic={"slots": 2})
    assert [each.id for each in without_queues.check()] == ["rmq.E005"]
    one = {"BACKEND": "rmq.django.TaskBackend", "OPTIONS": {"outbox": "default", "prefix": name}}
    two = one | {"OPTIONS": {"outbox": "default", "prefix": "other"}}
    with override_settings(TASKS={"default": one, "two": two}):
        found = [each.id for backend in task_backends.all() for each in backend.check()]
    assert found == ["rmq.E004"] * 2


def test_the_migration_has_sql_and_can_be_undone(shop_db: str) -> None:
    from django.core.management import call_command
    from django.db import connection

    out = StringIO()
    call_command("sqlmigrate", "rmq", "0001", stdout=out, no_color=True)
    assert "CREATE TABLE rmq_stub" in out.getvalue()
    assert "CREATE INDEX rmq_stub_unsent" in out.getvalue()
    for target, is_there in (("zero", False), ("0001", True)):
        call_command("migrate", "rmq", target, verbosity=0)
        assert ({"rmq_stub", "rmq_log"} <= {*connection.introspection.table_names()}) is is_there
    call_command("makemigrations", "--check", "rmq", verbosity=0)


# --- an order and its task, with kills at each moment ---------------------------------------------


def in_child(do: Callable[[], object]) -> None:
    """Do something in a fork, which nothing survives."""
    pid = os.fork()
    if pid == 0:
        try:
            do()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)


def place(tasks: Any, number: int, dies_at: int) -> None:
    """Write an order and its task in one transaction; die before the statement of that number."""
    from django.db import connection, transaction

    from tests.integrations.shop.models import Order

    at = 0

    def die(*_: Any) -> None:
        nonlocal at
        if at == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        at += 1

    def dies(execute: Any, *given: Any) -> Any:
        die()
        return execute(*given)

    commit = connection._commit
    connection._commit = lambda: (die(), commit(), die())
    with connection.execute_wrapper(dies), transaction.atomic():
        Order.objects.create(number=number)
        tasks.add.enqueue(number)


def relay_and_die(backend: Any, dies_at: int) -> None:
    """Relay a batch; die before the send, before its rows are marked, or after that."""
    relay = backend.relay()
    send, record = relay._dispatcher.send, relay._record

    def die_before(moment: int, function: Any) -> Any:
        def call(*given: Any) -> Any:
            if moment == dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*given)

        return call

    relay._dispatcher.send = die_before(0, send)
    relay._record = die_before(1, record)
    relay.run_once()


def orders_and_tasks(
    backend: Any, tasks: Any, count: int, seed: int, each: int = 1
) -> tuple[list[int], Counter[int]]:
    """Place orders and relay their tasks in processes that die; what there is at the end.

    Args:
        backend: Backend of the tasks.
        tasks: Tasks of the project.
        count: Number of transactions.
        seed: Seed of the moments.
        each: Largest number of transactions of a process. It dies in the last one.
    """
    from django.db import connection

    from tests.integrations.shop.models import Order

    dice = random.Random(seed)
    connection.close()
    last = -1
    while last < count - 1:
        first, last = last + 1, min(count - 1, last + dice.randint(1, each))
        moments = {last: last % 6 if each == 1 else dice.randrange(6)}
        in_child(lambda: [place(tasks, n, moments.get(n, -1)) for n in range(first, last + 1)])  # noqa: B023
        if dice.random() < 0.1:
            in_child(lambda: relay_and_die(backend, dice.randrange(3)))
    if backend.outbox is not None:
        while backend.relay().run_once():
            pass
    sent: Counter[int] = Counter()
    with backend.topic("default").consumer() as consumer:
        while batch := consumer.receive(max_messages=1000, wait=0):
            sent.update(d.body["args"][0] for d in batch)
            consumer.ack(batch)
    return sorted(Order.objects.values_list("number", flat=True)), sent


def test_an_order_and_its_task_are_both_there_or_neither(backend: Any, tasks: Any) -> None:
    numbers, sent = orders_and_tasks(backend, tasks, 24, 1)

    assert 3 < len(numbers) < 24
    assert sent == Counter(numbers)


def test_without_the_outbox_an_order_or_a_task_is_alone(
    make_backend: Make, shop_db: str, tasks: Any
) -> None:
    numbers, sent = orders_and_tasks(make_backend(), tasks, 12, 1)

    assert sent != Counter(numbers)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_many_orders_and_their_tasks(backend: Any, tasks: Any) -> None:
    count = int(os.environ.get("RMQ_TEST_ORDERS") or 1000)  # 10 000 take 4 to 11 minutes
    seed = random.randrange(1 << 30)
    numbers, sent = orders_and_tasks(backend, tasks, count, seed, each=9)

    print(f"seed {seed}: {len(numbers)} of {count} transactions committed")
    assert 0.7 * count < len(numbers) < 0.99 * count
    assert sent == Counter(numbers)
