"""The settling of a failure: the order of options, and options with wrong results."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest

import rmq
from rmq.kernel.core import record
from rmq.kernel.core.interceptor import Hooks
from rmq.kernel.core.score import receipt_score
from rmq.kernel.delivery.delivery_blocking import Delivery
from rmq.kernel.delivery.inner_delivery import BatchOrigin, InnerDelivery
from rmq.kernel.handlers.handler import Handler
from rmq.kernel.producer.encode import RETRY_MARK, RUNTIME_MARK
from rmq.worker.running.invoker import invoker_class
from rmq.worker.settling.disposition import (
    Disposition,
    RuntimeExceeded,
    disposition_for,
    runtime_exceeded,
)

POLICY_OF_THE_TOPIC = None  # a ruling that names no wait leaves it to the topic


def registered(function: Callable[..., Any] | None = None, **options: Any) -> Handler:
    client = rmq.Client("redis://127.0.0.1:1/0")
    client.topic("orders").handler(**options)(function or (lambda body: None))
    return client._handlers.by_topic["orders"].default


def delivered(body: Any = None, attempt: int = 1, **marks: str) -> InnerDelivery:
    flags, envelope = 0, b""
    if marks:
        names = {"retry": RETRY_MARK, "max_runtime": RUNTIME_MARK}
        flags = record.HEADERS
        envelope = record.length_prefixed(msgpack.packb({names[k]: v for k, v in marks.items()}))
    entry = record.head(1, flags, 20) + bytes(4) + envelope + b"null"
    origin = BatchOrigin(SimpleNamespace(index=0), 1, 16, float("inf"))  # type: ignore[arg-type]
    score = receipt_score(1_790_000_000, 17 - attempt, 1)
    return InnerDelivery(origin, bytes(16), score, entry, 1, body)


def show(delivery: InnerDelivery) -> Delivery:
    settle_with: Any = None  # nothing is settled here
    return Delivery(delivery, settle_with)


def wait_of(handler: Handler, error: BaseException, one: Any = None) -> float | None:
    disposition = disposition_for(handler, show(one or delivered()), error)
    assert disposition.verb == "nack"
    return disposition.wait_s


FIXED = rmq.Levels((7,))  # no jitter: seven seconds


def test_without_any_option_the_topic_rules() -> None:
    error = ValueError("no")

    assert disposition_for(registered(), show(delivered()), error) == Disposition(
        "nack", POLICY_OF_THE_TOPIC, error
    )


def test_the_handler_s_policy_comes_before_the_topic_s() -> None:
    assert wait_of(registered(retry=FIXED), ValueError()) == 7
    assert wait_of(registered(retry="immediate"), ValueError()) == 0


def test_the_message_s_policy_comes_before_the_handler_s() -> None:
    one = delivered(retry=rmq.Levels((3,)).to_redis())

    assert wait_of(registered(retry=FIXED), ValueError(), one) == 3
    assert wait_of(registered(), ValueError(), one) == 3


def test_a_rule_for_the_error_comes_before_the_message_s_policy() -> None:
    handler = registered(retry=FIXED, on_error={ValueError: rmq.Retry(11)})
    one = delivered(retry="immediate")

    assert wait_of(handler, ValueError(), one) == 11
    assert wait_of(handler, KeyError(), one) == 0


def test_what_the_handler_raises_to_say_so_comes_before_all_rules() -> None:
    handler = registered(on_error={Exception: rmq.Reject("never"), rmq.Retry: rmq.Reject("nor")})

    assert disposition_for(handler, show(delivered()), rmq.Snooze(9)) == Disposition("release", 9.0)
    assert disposition_for(handler, show(delivered()), rmq.Retry(8)).wait_s == 8
    assert disposition_for(handler, show(delivered()), rmq.Reject("why")).error == "why"


def test_the_rule_of_the_most_derived_type_decides_in_any_order() -> None:
    class Mine(KeyError): ...

    ordered = {LookupError: rmq.Retry(1), KeyError: rmq.Retry(2), Exception: rmq.Retry(3)}
    for rules in (ordered, dict(reversed(list(ordered.items())))):
        handler = registered(on_error=rules)

        assert wait_of(handler, Mine()) == 2
        assert wait_of(handler, IndexError()) == 1
        assert wait_of(handler, ValueError()) == 3


def test_a_rule_may_be_a_policy_by_object_or_word() -> None:
    handler = registered(on_error={ValueError: FIXED, KeyError: "immediate"})  # type: ignore[dict-item]

    assert wait_of(handler, ValueError()) == 7
    assert wait_of(handler, KeyError()) == 0


def test_a_rule_to_snooze_costs_no_retry() -> None:
    handler = registered(on_error={ValueError: rmq.Snooze(60)})

    assert disposition_for(handler, show(delivered()), ValueError()) == Disposition("release", 60.0)


def test_a_rule_to_reject_tells_its_words_and_the_error() -> None:
    handler = registered(on_error={ValueError: rmq.Reject("bad order"), KeyError: rmq.Reject})  # type: ignore[dict-item]

    told = disposition_for(handler, show(delivered()), ValueError("no id"))
    bare = disposition_for(handler, show(delivered()), error := KeyError("id"))

    assert (told.verb, str(told.error)) == ("reject", "bad order")
    assert isinstance(told.error, rmq.Reject)
    assert str(told.error.__cause__) == "no id"
    assert (bare.verb, bare.error) == ("reject", error)


def test_a_retry_without_delay_leaves_the_wait_to_the_topic_and_tells_its_cause() -> None:
    cause = ValueError("no")
    asked = rmq.Retry()
    asked.__cause__ = cause

    assert disposition_for(registered(), show(delivered()), asked) == Disposition(
        "nack", POLICY_OF_THE_TOPIC, cause
    )


def test_a_policy_climbs_with_the_attempts() -> None:
    handler = registered(retry=rmq.Levels((1, 5, 25)))

    waits = [wait_of(handler, ValueError(), delivered(attempt=n)) for n in (1, 2, 3, 4, 16)]

    assert waits == [1, 5, 25, 25, 25]


def test_a_retry_function_sees_the_delivery_and_the_error() -> None:
    seen = []

    def choose(d: Any, error: BaseException) -> float:
        seen.append((d.attempt, type(error)))
        return d.attempt * 10

    assert wait_of(registered(retry=choose), KeyError(), delivered(attempt=3)) == 30
    assert seen == [(3, KeyError)]


def test_a_retry_function_that_returns_nothing_leaves_it_to_the_topic() -> None:
    assert wait_of(registered(retry=lambda d, e: None), ValueError()) is POLICY_OF_THE_TOPIC
    assert wait_of(registered(retry=lambda d, e: 0), ValueError()) == 0


def _raises(d: Any, error: BaseException) -> float:
    raise RuntimeError("the rule is broken")


@pytest.mark.parametrize(
    "nonsense",
    [
        _raises,
        lambda d, e: "soon",
        lambda d, e: -1,
        lambda d, e: float("nan"),
        lambda d, e: float("inf"),
        lambda d, e: True,
        lambda d, e: 1e12,
        lambda d, e: rmq.Exponential(),
        lambda d: 5,
    ],
)
def test_a_broken_retry_function_leaves_it_to_the_topic_and_is_logged(
    nonsense: Any, caplog: pytest.LogCaptureFixture
) -> None:
    error = ValueError("the handler's own")

    with caplog.at_level(logging.ERROR, "rmq"):
        disposition = disposition_for(registered(retry=nonsense), show(delivered()), error)

    assert disposition == Disposition("nack", POLICY_OF_THE_TOPIC, error)
    assert "the topic's policy applies" in caplog.text


@pytest.mark.parametrize("bad", [rmq.Snooze("9"), rmq.Retry(-1), rmq.Snooze(float("nan"))])  # type: ignore[arg-type]
def test_a_delay_that_is_none_counts_as_a_failure_and_is_logged(
    bad: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    assert disposition_for(registered(), show(delivered()), bad) == Disposition(
        "nack", POLICY_OF_THE_TOPIC, bad
    )
    assert "the topic's policy applies" in caplog.text


def test_a_policy_that_nobody_can_read_in_a_message_leaves_it_to_the_topic(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = delivered(retry="fibonacci:1:2")

    assert wait_of(registered(retry=FIXED), ValueError(), one) is POLICY_OF_THE_TOPIC
    assert "the topic's policy applies" in caplog.text


def test_the_message_s_max_runtime_comes_before_the_handler_s() -> None:
    handler = registered(max_runtime=60)

    assert handler.runtime_of(delivered()) == 60
    assert handler.runtime_of(delivered(max_runtime="1500")) == 1.5
    assert registered().runtime_of(delivered()) is None
    assert registered().runtime_of(delivered(max_runtime="1500")) == 1.5


def test_running_too_long_is_an_error_that_rules_can_name() -> None:
    handler = registered(on_error={rmq.RMQError: rmq.Reject("too slow")})

    assert disposition_for(handler, show(delivered()), runtime_exceeded(2)).verb == "reject"


# --- a run ---------------------------------------------------------------------------------------


def runner_of(handler: Handler) -> Any:
    return invoker_class(handler)(handler, show, Hooks())


def run(function: Callable[..., Any], given: Any = None, /, **options: Any) -> Disposition:
    decided: Disposition = runner_of(registered(function, **options)).run(delivered(given))
    return decided


def run_async(function: Callable[..., Any], given: Any = None, /, **options: Any) -> Disposition:
    return asyncio.run(runner_of(registered(function, **options)).run(delivered(given)))


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit()])
def test_even_an_exit_inside_a_handler_is_the_handler_s_failure(error: BaseException) -> None:
    def handle(body: Any) -> None:
        raise error

    async def handle_async(body: Any) -> None:
        raise error

    assert run(handle) == Disposition("nack", POLICY_OF_THE_TOPIC, error)
    assert run_async(handle_async) == Disposition("nack", POLICY_OF_THE_TOPIC, error)


def test_a_handler_that_cancels_itself_has_failed() -> None:
    async def handle(body: Any) -> None:
        raise asyncio.CancelledError

    disposition = run_async(handle)

    assert disposition.verb == "nack"
    assert "cancelled itself" in str(disposition.error)


def a_coroutine() -> Any:
    async def work() -> None: ...

    return work()


def a_task() -> Any:
    return asyncio.ensure_future(a_coroutine())


def a_generator() -> Any:
    return (n for n in range(3))


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("work", [a_coroutine, a_task, a_generator, concurrent.futures.Future])
def test_a_handler_that_returns_work_which_is_not_done_has_failed(
    work: Callable[[], Any], listed: bool, batch: bool
) -> None:
    def handle(body: Any) -> Any:
        return [work()] if listed else work()

    async def handle_async(body: Any) -> Any:
        return handle(body)

    functions = [handle_async] if work is a_task else [handle, handle_async]
    for function in functions:
        if batch:
            (disposition,) = run_batch(function, [1])
        else:
            disposition = (run if function is handle else run_async)(function)

        assert disposition.verb == "nack"
        assert "whose work is not done" in str(disposition.error)


@pytest.mark.parametrize("value", [None, 7, "text", [1, 2], (), {"a": 1}, range(3)])
def test_any_other_value_that_a_handler_returns_is_ignored(value: Any) -> None:
    async def handle(body: Any) -> Any:
        return value

    assert run(lambda body: value).verb == run_async(handle).verb == "ack"


def test_a_body_that_does_not_fit_is_undecodable_and_the_handler_is_not_called() -> None:
    called = []

    def handle(body: int) -> None:
        called.append(body)

    async def handle_async(body: int) -> None:
        called.append(body)

    for disposition in (run(handle, "seven"), run_async(handle_async, "seven")):
        assert (disposition.verb, disposition.kind) == ("reject", "u")
        assert disposition.error == "body: str does not fit int"
    assert called == []


def test_a_handler_of_the_delivery_alone_finds_the_body_read() -> None:
    seen = []

    def handle(d: rmq.Delivery) -> None:
        seen.append(d.body)

    assert run(handle, 7, body=float).verb == "ack"
    assert run(handle, "x", body=float).kind == "u"
    assert seen == [7]


def test_an_async_run_that_is_too_long_is_cancelled_and_has_failed() -> None:
    ends = []

    async def handle(body: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("cleaned up")

    disposition = run_async(handle, max_runtime=0.05)

    assert disposition.verb == "nack"
    assert isinstance(disposition.error, RuntimeExceeded)
    assert ends == ["cleaned up"]


def test_a_timeout_of_the_handler_s_own_is_not_max_runtime() -> None:
    async def handle(body: Any) -> None:
        raise TimeoutError("upstream")

    disposition = run_async(handle, max_runtime=60)

    assert type(disposition.error) is TimeoutError


def run_batch(function: Callable[..., Any], bodies: list[Any], **options: Any) -> list[Disposition]:
    handler = registered(function, batch=10, **options)
    runner = runner_of(handler)
    if handler.is_async:
        batch = [delivered(body) for body in bodies]
        found = asyncio.run(runner.run_batch(batch))
    else:
        batch = [delivered(body) for body in bodies]
        found = runner.run_batch(batch)
    assert {id(one) for one, _ in found} == {id(one) for one in batch}
    assert len(found) == len(batch)
    by_id = {id(one): disposition for one, disposition in found}
    return [by_id[id(one)] for one in batch]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("error", "verb", "wait_s", "told"),
    [
        (ValueError("no"), "nack", 7.0, "no"),
        (rmq.Retry(5), "nack", 5.0, "asked for a retry"),
        (rmq.Snooze(9), "release", 9.0, "None"),
        (rmq.Reject("why"), "reject", None, "why"),
        (KeyError("k"), "reject", None, "bad key"),
    ],
)
@pytest.mark.parametrize("caused", [False, True])
def test_what_a_batch_raises_is_ruled_alike_in_threads_and_tasks(
    is_async: bool, caused: bool, error: Exception, verb: str, wait_s: float | None, told: str
) -> None:
    error.__cause__ = LookupError("the cause") if caused else None
    if caused and isinstance(error, rmq.Retry):
        told = "the cause"

    def handle(batch: list[Any]) -> None:
        raise error

    async def handle_async(batch: list[Any]) -> None:
        raise error

    dispositions = run_batch(
        handle_async if is_async else handle, [1, 2, 3], retry=FIXED,
        on_error={KeyError: rmq.Reject("bad key")},
    )  # fmt: skip

    assert [(r.verb, r.wait_s, str(r.error)) for r in dispositions] == [(verb, wait_s, told)] * 3
    if isinstance(error, KeyError):
        assert all(isinstance(r.error, rmq.Reject) and r.error.__cause__ for r in dispositions)


@pytest.mark.parametrize("is_async", [False, True])
def test_of_a_batch_only_the_misfits_are_rejected(is_async: bool) -> None:
    seen = []

    def handle(batch: list[Any]) -> None:
        seen.extend(d.body for d in batch)

    async def handle_async(batch: list[Any]) -> None:
        seen.extend(d.body for d in batch)

    dispositions = run_batch(handle_async if is_async else handle, [1, "two", 3], body=int)

    assert [r.verb for r in dispositions] == ["ack", "reject", "ack"]
    assert dispositions[1].kind == "u"
    assert seen == [1, 3]
