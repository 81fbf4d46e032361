"""The hooks: when they are called, with what, in which order; and what they cannot break."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import rmq
from rmq import AsyncClient, Client, Outgoing
from tests.integration.driven import both_clients, connect
from tests.integration.working import handle, work
from tests.servers import Server

STYLES = ("plain", "async")
HOOKS = ("before_send", "after_send", "before_handle", "after_handle")


class Notes(rmq.Interceptor):
    """Notes what it is called for."""

    def __init__(self, seen: list[Any], name: str = "") -> None:
        self.seen = seen
        self.name = name

    def before_send(self, topic: str, message: Outgoing) -> None:
        self.seen.append((self.name, "before_send", topic, message.body))

    def after_send(self, topic: str, message: Outgoing, result: Any) -> None:
        self.seen.append((self.name, "after_send", topic, result))

    def before_handle(self, delivery: Any) -> None:
        self.seen.append((self.name, "before_handle", delivery.body, delivery.attempt))

    def after_handle(self, delivery: Any, outcome: rmq.Outcome) -> None:
        self.seen.append((self.name, "after_handle", delivery.body, outcome))


class AsyncNotes(Notes):
    """The same, awaited."""

    async def before_send(self, topic: str, message: Outgoing) -> None:
        super().before_send(topic, message)

    async def after_send(self, topic: str, message: Outgoing, result: Any) -> None:
        super().after_send(topic, message, result)

    async def before_handle(self, delivery: Any) -> None:
        super().before_handle(delivery)

    async def after_handle(self, delivery: Any, outcome: rmq.Outcome) -> None:
        super().after_handle(delivery, outcome)


def names(seen: list[Any]) -> list[str]:
    return [" ".join(filter(None, entry[:2])) for entry in seen]


def outcomes(seen: list[Any]) -> list[rmq.Outcome]:
    return [entry[3] for entry in seen if entry[1] == "after_handle"]


Connect = Callable[..., Any]


# --- when, with what, in which order -------------------------------------------------------------


@pytest.mark.parametrize("style", STYLES)
def test_the_first_interceptor_is_the_outermost_and_a_workers_is_inside_the_clients(
    link: Connect, name: str, style: str
) -> None:
    seen: list[Any] = []
    client = link(Notes(seen, "a"), Notes(seen, "b"))
    topic = client.topic(name)
    handle(topic, style, lambda body, d: seen.append(("", "handler", body)))

    sent = topic.send("x")
    work(client, lambda: len(seen) >= 11, interceptors=[Notes(seen, "w")])

    assert names(seen) == [
        "a before_send", "b before_send", "b after_send", "a after_send",
        "a before_handle", "b before_handle", "w before_handle", "handler",
        "w after_handle", "b after_handle", "a after_handle",
    ]  # fmt: skip
    assert seen[0][2:] == (name, "x")
    assert seen[3][2:] == (name, sent)
    assert seen[4][2:] == ("x", 1)
    (outcome,) = {(one.verb, one.error) for one in outcomes(seen)}
    assert outcome == ("ack", None)


@pytest.mark.parametrize("style", STYLES)
def test_without_interceptors_the_message_is_handled(link: Connect, name: str, style: str) -> None:
    seen: list[Any] = []
    client = link()
    topic = client.topic(name)
    handle(topic, style, lambda body, d: seen.append((body, dict(d.headers), dict(d.marks))))

    topic.send("x")
    work(client, lambda: seen)

    assert seen == [("x", {}, {})]


def test_async_hooks_are_awaited(server: Server, name: str) -> None:
    seen: list[Any] = []
    with connect("async", server.url, interceptors=[AsyncNotes(seen)]) as client:
        topic = client.topic(name)
        handle(topic, "async", lambda body, d: seen.append(("", "handler")))

        topic.send("x")
        work(client, lambda: len(seen) >= 5)

    assert names(seen) == [
        "before_send", "after_send", "before_handle", "handler", "after_handle",
    ]  # fmt: skip


@pytest.mark.parametrize("style", STYLES)
def test_the_outcome_says_what_the_worker_does(link: Connect, name: str, style: str) -> None:
    seen: list[Any] = []
    client = link(Notes(seen))
    topic = client.topic(name, max_retries=1, retry="immediate")
    seconds: list[float] = []

    def run(body: str, d: Any) -> None:
        if body == "raise":
            raise KeyError("lost")
        if body == "snooze" and not seconds:
            seconds.append(1)
            raise rmq.Snooze(0.001)
        if body == "reject":
            raise rmq.Reject("why")

    handle(topic, style, run, concurrency=1)
    for body in ("return", "raise", "snooze", "reject"):
        topic.send(body)
    work(client, lambda: len(outcomes(seen)) >= 6)

    found = sorted((entry[2], entry[3].verb) for entry in seen if entry[1] == "after_handle")
    assert found == [
        ("raise", "nack"), ("raise", "nack"), ("reject", "reject"), ("return", "ack"),
        ("snooze", "ack"), ("snooze", "release"),
    ]  # fmt: skip
    errors = [one.error for one in outcomes(seen) if one.verb == "nack"]
    assert [repr(error) for error in errors] == ["KeyError('lost')"] * 2
    assert all(0 <= one.seconds < 5 for one in outcomes(seen))


@both_clients
def test_a_handler_that_settles_by_itself_is_reported_as_its_own(link: Connect, name: str) -> None:
    seen: list[Any] = []
    client = link(Notes(seen))
    topic = client.topic(name)
    handle(topic, "plain", lambda body, d: d.ack())

    topic.send("x")
    work(client, lambda: outcomes(seen))

    assert outcomes(seen)[0].verb == "own"


@both_clients
def test_the_hooks_see_a_send_that_fails(link: Connect, name: str) -> None:
    seen: list[Any] = []
    topic = link(Notes(seen)).topic(name, max_length=2)
    topic.send("one")

    with pytest.raises(rmq.EncodeError):
        topic.send(object())
    with pytest.raises(rmq.QueueFull):
        topic.send_many([Outgoing("two", merge_key="k", time_range=60), Outgoing("three")])

    results = [entry[3] for entry in seen if entry[1] == "after_send"]
    assert [type(one).__name__ for one in results] == [
        "SendResult", "EncodeError", "SendResult", "QueueFull",
    ]  # fmt: skip


@both_clients
def test_a_hook_may_change_the_message_and_the_senders_own_stays_as_it_is(
    link: Connect, name: str
) -> None:
    class Stamp(rmq.Interceptor):
        def before_send(self, topic: str, message: Outgoing) -> None:
            message.headers = {**(message.headers or {}), "by": "stamp"}
            message.body = [message.body]
            message.marks = {"rmq-x": "y"}

    topic = link(Stamp()).topic(name)
    mine = Outgoing("x", headers={"a": "b"})
    (sent,) = topic.send_many([mine])

    assert mine == Outgoing("x", headers={"a": "b"})
    found = topic.get(sent.id)
    assert (found.body, dict(found.headers)["by"]) == (["x"], "stamp")


@pytest.mark.parametrize("style", STYLES)
def test_of_a_batch_the_hooks_see_each_delivery(link: Connect, name: str, style: str) -> None:
    seen: list[Any] = []
    client = link(Notes(seen))
    topic = client.topic(name)
    topic.send_many([Outgoing(n) for n in range(3)])
    handle(topic, style, lambda bodies, ds: seen.append(("", "handler", bodies)), batch=3)

    work(client, lambda: len(outcomes(seen)) >= 3)

    handling = [entry for entry in seen if "send" not in entry[1]]
    assert names(handling) == ["before_handle"] * 3 + ["handler"] + ["after_handle"] * 3
    assert sorted(entry[2] for entry in handling[:3]) == [0, 1, 2]


# --- what they cannot break ----------------------------------------------------------------------


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("style", STYLES)
def test_a_hook_that_raises_is_reported_and_the_message_is_sent_and_handled(
    link: Connect, name: str, style: str, hook: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: Any, *args: Any) -> None:
        raise RuntimeError("a broken hook")

    seen: list[Any] = []
    broken = type("Broken", (rmq.Interceptor,), {hook: fail})
    client = link(Notes(seen, "a"), broken(), Notes(seen, "c"))
    topic = client.topic(name)
    handled: list[Any] = []
    handle(topic, style, lambda body, d: handled.append(body))

    with caplog.at_level(logging.ERROR, "rmq"):
        assert topic.send("x").status == "stored"
        work(client, lambda: len(seen) >= 8)

    assert handled == ["x"]
    assert client.admin.stats(name)["settled"] == 1
    assert len(seen) == 8, "the others are called all the same"
    (told,) = [r for r in caplog.records if "interceptor" in r.getMessage()]
    assert told.name == "rmq"
    assert told.exc_info
    assert "a broken hook" in str(told.exc_info[1])


def test_an_async_hook_that_raises_is_reported(
    server: Server, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(rmq.Interceptor):
        async def before_send(self, topic: str, message: Outgoing) -> None:
            raise RuntimeError("a broken hook")

        before_handle = before_send

    handled: list[Any] = []
    with connect("async", server.url, interceptors=[Broken()]) as client:
        topic = client.topic(name)
        handle(topic, "async", lambda body, d: handled.append(body))
        topic.send("x")
        work(client, lambda: handled)

    assert len([r for r in caplog.records if "interceptor" in r.getMessage()]) == 2


@contextmanager
def refused(text: str) -> Iterator[None]:
    with pytest.raises(rmq.InvalidType, match=text):
        yield


def test_an_async_hook_where_nobody_awaits_it_is_refused(server: Server, name: str) -> None:
    class Sends(rmq.Interceptor):
        async def after_send(self, topic: str, message: Outgoing, result: Any) -> None: ...

    class Handles(rmq.Interceptor):
        async def before_handle(self, delivery: Any) -> None: ...

    with refused(r"Sends\.after_send is async, and rmq\.Client is not"):
        Client(server.url, interceptors=[Sends()])
    AsyncClient(server.url, interceptors=[Sends(), Handles()])
    with Client(server.url, interceptors=[Handles()]) as client:
        client.topic(name).handler()(lambda body: None)
        with refused(r"Handles\.before_handle is async, and a plain handler is not"):
            rmq.Worker(client)


def test_what_is_no_interceptor_is_refused(server: Server) -> None:
    for wrong in (rmq.Interceptor, object()):
        with refused("give objects of subclasses of rmq.Interceptor"):
            Client(server.url, interceptors=[wrong])  # type: ignore[list-item]
