"""Results and progress: what a sender learns of a message that has ended, or runs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

import rmq
from rmq.errors import (
    AlreadySettled,
    Cancelled,
    ConfigurationError,
    InvalidType,
    InvalidValue,
    LeaseLost,
    NotFinished,
    ResultNotFound,
)
from rmq.kernel.core.failure import this_worker
from rmq.kernel.results import flows
from tests.conftest import Clock
from tests.integration.driven import both_clients
from tests.integration.working import work
from tests.patience import wait_for
from tests.servers import Server


def send(topic: Any, body: Any = 1, **options: Any) -> Any:
    """Send a message that keeps its result. Return its handle."""
    return topic.result(topic.send(body, **{"keep_result": 60, **options}).message_id)


def waiting_on(handle: Any, timeout: float = 30) -> tuple[threading.Thread, list[Any]]:
    """Wait for a result in another thread, by the sync client."""
    got: list[Any] = []

    def run() -> None:
        got.append(handle.wait(timeout))

    thread = threading.Thread(target=run)
    thread.start()
    return thread, got


@both_clients
def test_an_acked_message_has_succeeded_with_the_value_of_ack(api: Any, name: str) -> None:
    topic = api.topic(name)
    handle = send(topic)
    assert (handle.read().place, handle.read().keeps, handle.read().outcome) == (
        "waiting",
        True,
        None,
    )
    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        assert d.headers == {}
        assert handle.read().place == "in_flight"
        d.ack(result={"total": 3})

    outcome = handle.wait(0)
    assert (outcome.id, outcome.outcome, outcome.value) == (handle.id, "succeeded", {"total": 3})
    assert (outcome.attempts, outcome.worker) == (1, this_worker())
    assert (outcome.error, outcome.failure, outcome.missing_value) == ("", None, "")
    assert outcome.kept_until - outcome.ended == timedelta(seconds=60)
    assert topic.results([handle.id])[0].outcome == outcome
    assert topic.get(handle.id) is None


@both_clients
@pytest.mark.parametrize("style", ["plain", "async"])
def test_a_worker_keeps_what_handlers_return(
    api: Any, name: str, server: Server, style: str
) -> None:
    topic = api.topic(name, results=rmq.Results(keep=timedelta(minutes=1)))
    handles = [topic.result(s.id) for s in topic.send_many([rmq.Outgoing(n) for n in range(20)])]
    if style == "plain":

        @topic.handler
        def plain(body: int) -> Any:
            return {"twice": 2 * body} if body else None

    else:

        @topic.handler
        async def handler(body: int) -> Any:
            return {"twice": 2 * body} if body else None

    work(api, lambda: all(handle.read().outcome for handle in handles))

    outcomes = [handle.wait(0) for handle in handles]
    assert [each.value for each in outcomes] == [None, *({"twice": 2 * n} for n in range(1, 20))]
    assert {each.outcome for each in outcomes} == {"succeeded"}
    assert all(each.started <= each.ended for each in outcomes)


def test_a_value_passes_middleware_and_hooks(client: rmq.Client, name: str) -> None:
    topic = client.topic(name)
    handle = send(topic, 7)

    @topic.handler
    @rmq.idempotent(rmq.Claims())
    def handler(body: int, twice: int = rmq.Depends(lambda: 2)) -> int:
        return twice * body

    work(client, lambda: handle.read().outcome)
    assert handle.wait(0).value == 14


@both_clients
@pytest.mark.parametrize(
    ("value", "problem"), [(b"x" * 300_000, "too_large"), ("text", "not_encodable")]
)
def test_a_value_that_cannot_be_kept_is_noted_and_the_message_succeeds(
    api: Any, name: str, value: Any, problem: str
) -> None:
    topic = api.topic(name, codec="bytes")
    handle = send(topic, b"1")
    with topic.consumer() as consumer:
        consumer.receive()[0].ack(result=value)

    outcome = handle.wait(0)
    assert (outcome.outcome, outcome.value, outcome.missing_value) == ("succeeded", None, problem)


def test_large_values_of_one_batch_go_in_several_calls(client: rmq.Client, name: str) -> None:
    topic = client.topic(name, codec="bytes", results=rmq.Results(), slots=1)
    sent = topic.send_many([rmq.Outgoing(b"%d" % n) for n in range(20)])

    @topic.handler(concurrency=20)
    def handler(body: bytes) -> bytes:
        return body * 100_000

    ids = [each.id for each in sent]
    work(client, lambda: all(state.outcome for state in topic.results(ids)))
    values = [state.outcome.value for state in topic.results(ids) if state.outcome]
    assert values == [b"%d" % n * 100_000 for n in range(20)]


def test_the_value_is_encrypted_by_the_inner_codec_of_offloaded(
    client: rmq.Client, name: str, tmp_path: Any, raw: Any
) -> None:
    keys = {"k1": b"1" * 32}
    codec = rmq.Offloaded(f"file://{tmp_path}", above=10, inner=rmq.Encrypted(keys))
    topic = client.topic(name, codec=codec, slots=1)
    handle = send(topic, "body" * 100)
    with topic.consumer() as consumer:
        consumer.receive()[0].ack(result="secret" * 100)

    assert handle.wait(0).value == "secret" * 100
    (entry,) = raw.hvals(f"rmq:{{{name}_0}}:results")
    assert b"secret" not in entry
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_receipts_settle_messages_with_results(client: rmq.Client, name: str) -> None:
    topic = client.topic(name)
    handle = send(topic)
    with topic.consumer() as consumer:
        receipt = str(consumer.receive()[0].receipt)
        assert consumer.ack_receipts([receipt]) == []
    outcome = handle.wait(0)
    assert (outcome.outcome, outcome.value) == ("succeeded", None)


@both_clients
def test_results_of_plain_messages_of_the_same_topic_are_not_kept(api: Any, name: str) -> None:
    topic = api.topic(name)
    kept, plain = send(topic), topic.result(topic.send(2).id)
    with pytest.raises(ResultNotFound, match="keeps no result") as caught:
        plain.wait(5)
    assert caught.value.reason == "not_kept"
    with topic.consumer() as consumer:
        for d in consumer.receive(10):
            d.ack(result=d.body)
    assert kept.wait(0).value == 1
    with pytest.raises(ResultNotFound, match="unknown") as caught:
        plain.wait(0)
    assert caught.value.reason == "unknown"


@both_clients
def test_a_timeout_says_that_the_message_has_not_finished(api: Any, name: str) -> None:
    handle = send(api.topic(name))
    with pytest.raises(NotFinished, match="it is waiting") as caught:
        handle.wait(0.01)
    assert isinstance(caught.value, TimeoutError)
    unknown = api.topic(name).result(api.topic(name).new_id())
    with pytest.raises(ResultNotFound, match="unknown") as not_found:
        unknown.wait(0.01)
    assert not_found.value.reason == "unknown"


def test_a_handle_of_another_topic_is_refused(client: rmq.Client, name: str) -> None:
    id = client.topic(name).send(1).id
    with pytest.raises(InvalidValue, match="another topic"):
        client.topic(f"{name}-other").result(id)
    with pytest.raises(InvalidValue, match="another topic"):
        client.topic(f"{name}-other").results([id])


def test_a_waiting_thread_gets_the_result_at_once(
    client: rmq.Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flows, "AGAIN_S", 1e6)  # only a signal can end the wait
    topic = client.topic(name)
    handle = send(topic)
    thread, got = waiting_on(handle)
    with client.topic(name).consumer() as consumer:
        (d,) = consumer.receive()
        d.ack(result="now")
    thread.join(20)
    assert [each.value for each in got] == ["now"]


def test_a_wait_survives_the_loss_of_its_connection(
    client: rmq.Client, name: str, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flows, "AGAIN_S", 1e6)
    topic = client.topic(name)
    handle = send(topic)
    thread, got = waiting_on(handle)
    channel = f"rmq:{{{name}}}:wake:results:{handle.id.slot}"
    wait_for(lambda: raw.pubsub_numsub(channel)[0][1] == 1)
    raw.client_kill_filter(_type="pubsub")
    with client.topic(name).consumer() as consumer:  # the signal is not heard
        consumer.receive()[0].ack(result="lost")
    thread.join(20)
    assert [each.value for each in got] == ["lost"]


def test_many_waiters_use_one_connection(server: Server, name: str) -> None:
    async def run() -> tuple[int, set[str]]:
        async with rmq.AsyncClient(server.url) as client:
            topic = client.topic(name, results=rmq.Results(), slots=4)
            sent = await topic.send_many([rmq.Outgoing(n) for n in range(500)])
            tasks = [asyncio.ensure_future(_value(topic.result(each.id))) for each in sent]
            with server.raw() as raw:
                await asyncio.to_thread(
                    wait_for, lambda: len(raw.pubsub_channels(f"*{name}*results*")) == 4
                )
                subscribers = len([c for c in raw.client_list() if int(c["sub"])])
                async with topic.consumer() as consumer:
                    while batch := await consumer.receive(1000):
                        await consumer.ack(batch)
            return subscribers, set(await asyncio.gather(*tasks))

    assert asyncio.run(run()) == (1, {"succeeded"})


async def _value(handle: rmq.AsyncResultHandle) -> str:
    return (await handle).outcome


@both_clients
def test_as_completed_yields_handles_as_their_messages_end(api: Any, name: str) -> None:
    topic = api.topic(name, results=rmq.Results())
    handles = [topic.result(each.id) for each in topic.send_many([rmq.Outgoing(n) for n in "abc"])]
    targets = [getattr(handle, "target", handle) for handle in handles]
    with topic.consumer() as consumer:
        for d in consumer.receive(10):
            if d.body != "b":
                d.ack(result=d.body)

    completed: Any = rmq.as_completed(targets, timeout=0)
    got, loop = [], getattr(api, "loop", None)
    with pytest.raises(NotFinished, match="1 of 3"):
        _collect(completed, got) if loop is None else loop.run_until_complete(
            _collect_async(completed, got)
        )
    assert sorted(got) == ["a", "c"]


def _collect(completed: Any, got: list[Any]) -> None:
    for handle in completed:
        got.append(handle.wait(0).value)


async def _collect_async(completed: Any, got: list[Any]) -> None:
    async for handle in completed:
        got.append((await handle.wait(0)).value)


def test_as_completed_refuses_other_objects(client: rmq.Client, name: str) -> None:
    assert list(rmq.as_completed([])) == []
    with pytest.raises(InvalidType, match=r"topic\.result"):
        rmq.as_completed([client.topic(name).send(1).id])  # type: ignore[list-item]


def test_a_client_ends_its_subscription_when_it_is_closed(server: Server, name: str) -> None:
    with rmq.Client(server.url) as client:
        handle = send(client.topic(name))
        with pytest.raises(NotFinished):
            handle.wait(0.05)
    with server.raw() as raw:
        assert raw.pubsub_numsub(f"rmq:{{{name}}}:wake:results:0")[0][1] == 0


# --- progress -------------------------------------------------------------------------------------


@pytest.fixture
def delivered(api: Any, name: str) -> Iterator[tuple[Any, Any]]:
    topic = api.topic(name)
    handle = send(topic)
    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        yield handle, d


@both_clients
def test_progress_is_read_by_the_sender(delivered: tuple[Any, Any]) -> None:
    handle, d = delivered
    d.progress(0.4, "page 12 of 30")
    progress = handle.read().progress
    assert (progress.fraction, progress.text) == (0.4, "page 12 of 30")
    assert (progress.attempt, progress.worker) == (1, this_worker())
    d.ack(result="done")
    assert handle.read().progress is None
    assert handle.wait(0).value == "done"


@both_clients
def test_progress_writes_once_a_second(delivered: tuple[Any, Any]) -> None:
    handle, d = delivered
    for n in range(50):
        d.progress(n / 50)
    assert handle.read().progress.fraction == 0
    getattr(d, "target", d)._inner.progress_at = 0.0  # a second later
    d.progress(1, "x" * 500)
    assert handle.read().progress.fraction == 1
    assert handle.read().progress.text == "x" * 200


@both_clients
def test_progress_of_a_message_without_a_result_writes_nothing(
    api: Any, name: str, server: Server
) -> None:
    topic = api.topic(name, slots=1)
    topic.send(1)
    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        d.progress(0.5)
    with server.raw() as raw:
        assert not raw.exists(f"rmq:{{{name}_0}}:results")


@both_clients
def test_progress_raises_cancelled_after_a_request(
    api: Any, name: str, delivered: tuple[Any, Any]
) -> None:
    handle, d = delivered
    assert api.topic(name).cancel(handle.id, running=True) == "requested"
    with pytest.raises(Cancelled):
        d.progress(0.5)
    with pytest.raises(Cancelled):
        d.progress(0.6)
    d.release()
    assert handle.wait(0).outcome == "cancelled"


@both_clients
def test_progress_of_a_lost_or_settled_delivery_raises(
    name: str, server: Server, delivered: tuple[Any, Any]
) -> None:
    handle, d = delivered
    with server.raw() as raw:
        raw.delete(f"rmq:{{{name}_{handle.id.slot}}}:prepare")
    with pytest.raises(LeaseLost):
        d.progress(0.5)
    with pytest.raises(AlreadySettled):
        d.ack()


@both_clients
@pytest.mark.parametrize(
    ("arguments", "error"),
    [((2,), InvalidValue), (("x",), InvalidType), ((0.1, 3), InvalidType), ((True,), InvalidType)],
)
def test_progress_checks_its_arguments(
    delivered: tuple[Any, Any], arguments: tuple[Any, ...], error: type[Exception]
) -> None:
    with pytest.raises(error):
        delivered[1].progress(*arguments)


@both_clients
def test_a_message_received_at_most_once_is_handed_over(api: Any, name: str) -> None:
    topic = api.topic(name)
    handle = send(topic)
    with topic.consumer(mode="at_most_once") as consumer:
        (d,) = consumer.receive()
        outcome = handle.wait(0)
        assert (outcome.outcome, outcome.value) == ("handed_over", None)
        with pytest.raises(ConfigurationError, match="at_most_once"):
            d.progress(0.5)


# --- other outcomes -------------------------------------------------------------------------------


@both_clients
def test_each_end_of_a_message_has_its_outcome(api: Any, name: str, clock: Clock) -> None:
    topic = api.topic(name, slots=1, max_retries=1, retry="immediate", on_expire="drop")
    names = ("rejected", "failed", "cancelled", "purged", "expired")
    handles = {}
    with topic.consumer() as consumer:
        for body in names:
            handles[body] = send(topic, body, expires=5 if body == "expired" else None)
            if body == "rejected":
                consumer.receive()[0].reject("too old")
            elif body == "failed":
                for _ in range(2):
                    consumer.receive()[0].nack(error=ValueError("no"))
            elif body == "cancelled":
                assert topic.cancel(handles[body].id) == "cancelled"
            elif body == "purged":
                api.admin.purge(name, "waiting")
        clock.advance(10)
        assert consumer.receive() == []

    outcomes = {body: handle.wait(0) for body, handle in handles.items()}
    assert [outcomes[body].outcome for body in names] == [
        "dead", "dead", "cancelled", "purged", "expired",
    ]  # fmt: skip
    assert outcomes["rejected"].error == "too old"
    assert (outcomes["failed"].error, outcomes["failed"].attempts) == ("ValueError: no", 2)
    assert outcomes["failed"].worker == this_worker()
    assert outcomes["cancelled"].error == ""


@both_clients
def test_a_redriven_message_has_no_result_until_it_ends_again(api: Any, name: str) -> None:
    topic = api.topic(name)
    handle = send(topic)
    with topic.consumer() as consumer:
        consumer.receive()[0].reject("no")
        assert handle.wait(0).outcome == "dead"
        api.admin.redrive(name)
        with pytest.raises(NotFinished):
            handle.wait(0)
        consumer.receive()[0].ack(result="at last")
    assert handle.wait(0).value == "at last"


def test_a_full_topic_that_drops_messages_says_so(client: rmq.Client, name: str) -> None:
    topic = client.topic(name, slots=1, max_length=1, overflow="drop_lowest")
    low = send(topic, 1, priority=20)
    send(topic, 2, priority=30)
    assert low.wait(0).outcome == "dropped"


@both_clients
def test_merged_messages_share_a_result(api: Any, name: str, clock: Clock) -> None:
    topic = api.topic(name)
    first = topic.send(1, merge_key="k", time_range=1, keep_result=60)
    second = topic.send(2, merge_key="k", time_range=1, merge="last")
    assert second.message_id == first.message_id
    clock.advance(5)
    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        d.ack(result=d.body)
    assert topic.result(second.message_id).wait(0).outcome == "succeeded"


# --- options of sends -----------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0, -1, 0.5, 31 * 86_400, "x", True])
def test_a_time_that_cannot_be_kept_is_refused(client: rmq.Client, name: str, keep: Any) -> None:
    with pytest.raises((InvalidValue, InvalidType), match="keep_result"):
        client.topic(name).send(1, keep_result=keep)
    with pytest.raises((InvalidValue, InvalidType), match=r"results\.keep"):
        rmq.Results(keep=keep)


def test_results_of_a_topic_is_rmq_results(client: rmq.Client, name: str) -> None:
    with pytest.raises(InvalidType, match=r"rmq\.Results"):
        client.topic(name, results=60)  # type: ignore[arg-type]


def test_the_mark_travels_with_every_kind_of_message(client: rmq.Client, name: str) -> None:
    topic = client.topic(name, groups=rmq.Groups(), results=rmq.Results(keep=60), slots=2)
    sent = [
        topic.send(1),
        topic.send(2, priority=900, headers={"h": "1"}, type="t", keep_result=30),
        topic.send(3, delay=0, retry=rmq.Immediate()),
        topic.send(4, group="g", share_key="s", weight=3),
        topic.send(5, merge_key="m", time_range=0.001),
        *topic.send_many([rmq.Outgoing(6), rmq.Outgoing(7, group="g")]),
    ]
    time.sleep(0.01)
    states = topic.results([each.message_id for each in sent])
    assert all(state.keeps for state in states)
    got = {}
    with topic.consumer() as consumer:
        while batch := consumer.receive(10):
            for d in batch:
                got[d.body] = (d.group, d.share_key, dict(d.headers))
                d.ack(result=d.body)
    assert got[2] == (None, None, {"h": "1"})
    assert got[4] == ("g", "s", {})
    assert sorted(got) == [1, 2, 3, 4, 5, 6, 7]
    values = [topic.result(each.message_id).wait(0).value for each in sent]
    assert values == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("audits", [False, True])
def test_messages_with_results_keep_the_order_of_their_group(
    server: Server, name: str, audits: bool
) -> None:
    interceptors = [rmq.Audit()] if audits else []
    with rmq.Client(server.url, interceptors=interceptors) as sender:
        topic = sender.topic(name, groups=rmq.Groups())
        handles = [send(topic, n, group="g" * 40) for n in range(3)]
        with topic.consumer() as consumer:
            for n in range(3):
                (d,) = consumer.receive(10)  # one message of the group at a time
                assert (d.group, d.body) == ("g" * 40, n)
                d.ack(result=n)
        assert [handle.wait(0).value for handle in handles] == [0, 1, 2]


def test_follow_ups_keep_their_results(client: rmq.Client, name: str) -> None:
    other = client.topic(f"{name}-other", results=rmq.Results())
    other.open()
    topic = client.topic(name)
    topic.send("first")
    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        ids = [d.then(other, "default"), d.then(other, "own", keep_result=5)]
        with pytest.raises(ResultNotFound):
            other.result(ids[0]).wait(0)
        d.ack()
    assert [state.keeps for state in other.results(ids)] == [True, True]
    with other.consumer() as consumer:
        for d in consumer.receive(10):
            d.ack(result=d.body)
    assert [other.result(id).wait(0).value for id in ids] == ["default", "own"]


def test_scheduled_messages_keep_their_results(client: rmq.Client, name: str, clock: Clock) -> None:
    topic = client.topic(name, results=rmq.Results(keep=60))
    for schedule in (
        topic.every("a", every=1, body="a"),
        client.topic(name).every("b", every=1, body="b", keep_result=5),
        client.topic(name).every("c", every=1, body="c"),
    ):
        schedule.declare()
        id = client.admin.schedule_run(name, schedule.name).id
        assert topic.results([id])[0].keeps == (schedule.name != "c")


def test_an_id_that_is_used_again_starts_a_new_result(
    client: rmq.Client, name: str, clock: Clock
) -> None:
    topic = client.topic(name, dedup_window=60)
    first = send(topic, 1, dedup_key="k", keep_result=3600)
    with topic.consumer() as consumer:
        consumer.receive()[0].ack(result="first")
    assert first.wait(0).value == "first"
    assert topic.send(1, dedup_key="k").status == "duplicate"
    assert first.wait(0).value == "first"
    clock.advance(200)
    again = send(topic, 2, dedup_key="k", keep_result=3600)
    assert again.id == first.id
    assert again.read().outcome is None
    with pytest.raises(NotFinished):
        again.wait(0)
    with topic.consumer() as consumer:
        consumer.receive()[0].ack(result="second")
    assert again.wait(0).value == "second"


def test_a_lost_ack_records_nothing(client: rmq.Client, name: str, raw: Any) -> None:
    topic = client.topic(name, slots=1)
    handle = send(topic)
    with topic.consumer() as consumer, client.topic(name).consumer() as other:
        (d,) = consumer.receive()
        d.release()
        (again,) = other.receive()
        with pytest.raises((LeaseLost, AlreadySettled)):
            d.ack(result="stale")
        assert handle.read().outcome is None
        again.ack(result="fresh")
    assert handle.wait(0).value == "fresh"
