"""Shared data: published data, lists that expire, and sets, from both clients."""

from __future__ import annotations

import threading
import time

import pytest

import rmq
from rmq.connectors import AsyncSharedData, SharedData
from tests.integration.driven import both_clients
from tests.patience import PATIENCE_S, wait_for


def shared(api, name):
    """The shared data of a namespace, for the client of a test."""
    if isinstance(api, rmq.Client):
        return SharedData(api, name)
    return Driven(api, name)


class Driven:
    """An AsyncSharedData that is called as the blocking one."""

    def __init__(self, api, name):
        self._api = api
        self._target = AsyncSharedData(api.target, name)

    def __getattr__(self, method):
        found = getattr(self._target, method)
        return lambda *given, **named: self._api.loop.run_until_complete(found(*given, **named))


@both_clients
def test_values_of_a_list_are_popped_once_in_their_order(api, name):
    data = shared(api, name)

    assert data.push("replies", b"1", b"2", expires=60) == 2
    assert data.push("replies", b"3", expires=60) == 3
    assert data.length("replies") == 3
    assert data.pop("replies", 2) == [b"1", b"2"]
    assert data.pop("replies", 10) == [b"3"]
    assert data.pop("replies") == []


def test_each_push_sets_the_time_at_which_a_list_is_deleted(api, name, raw):
    data = SharedData(api, name)
    data.push("replies", b"1", expires=1000)
    data.push("replies", b"2", expires=60)

    (key,) = raw.scan_iter(f"rmq:shared:{name}:*")
    assert (key, 50_000 < raw.pttl(key) <= 60_000) == (
        f"rmq:shared:{name}:list:replies".encode(), True,
    )  # fmt: skip
    data.delete("replies")
    assert not raw.exists(key)


@both_clients
def test_a_value_is_replaced_and_may_expire(api, name, raw):
    data = shared(api, name)
    assert data.get("result") is None

    data.put("result", b"1", expires=60)
    assert data.get("result") == b"1"
    assert 50_000 < raw.pttl(f"rmq:shared:{name}:value:result") <= 60_000
    data.put("result", b"")
    assert (data.get("result"), raw.ttl(f"rmq:shared:{name}:value:result")) == (b"", -1)


@both_clients
def test_a_set_has_each_member_once_and_may_expire(api, name, raw):
    data = shared(api, name)
    data.add("queues", b"a")
    data.add("queues", b"a")
    data.add("queues", b"b", expires=60)

    assert data.members("queues") == {b"a", b"b"}
    assert 50_000 < raw.pttl(f"rmq:shared:{name}:set:queues") <= 60_000
    data.discard("queues", b"a")
    data.discard("queues", b"a")
    assert data.members("queues") == {b"b"}
    assert data.members("others") == set()


def test_the_namespaces_are_apart(api, name):
    SharedData(api, name).push("list", b"1", expires=60)

    assert SharedData(api, f"{name}-other").pop("list") == []


@pytest.mark.parametrize("wrong", ["", "a b", "x" * 129])
def test_a_namespace_is_checked(api, wrong):
    with pytest.raises(rmq.ConfigurationError, match="namespace"):
        SharedData(api, wrong)


def test_a_list_needs_a_time(api, name):
    with pytest.raises(rmq.ConfigurationError, match="expires"):
        SharedData(api, name).push("list", b"1", expires=0)


def test_subscribers_receive_what_is_published_after_they_have_subscribed(api, name):
    data = SharedData(api, name)
    data.publish("news", b"before")
    subscription = data.subscribe("news", "other")
    begun = subscription.receive(PATIENCE_S)
    while len(begun) < 2:
        begun += subscription.receive(PATIENCE_S)

    assert sorted(begun) == [("news", None), ("other", None)]
    assert data.publish("news", b"1") == 1
    data.publish("other", b"2")
    found = []
    while len(found) < 2:
        found += subscription.receive(PATIENCE_S)
    assert found == [("news", b"1"), ("other", b"2")]
    assert subscription.receive(0) == []
    subscription.close()
    wait_for(lambda: data.publish("news", b"3") == 0, "the subscription stays")


def test_a_subscription_that_waits_follows_new_channels_at_once(api, name):
    data = SharedData(api, name)
    subscription = data.subscribe("first")
    found = []

    def listen():
        while len(found) < 3:
            found.extend(subscription.receive(PATIENCE_S))

    thread = threading.Thread(target=listen)
    thread.start()
    wait_for(lambda: found == [("first", None)], "not subscribed")
    began = time.monotonic()
    subscription.add("second")
    wait_for(lambda: ("second", None) in found, "not added")
    data.publish("second", b"1")
    thread.join()

    assert found == [("first", None), ("second", None), ("second", b"1")]
    assert time.monotonic() - began < PATIENCE_S
    subscription.remove("second")
    data.publish("second", b"2")
    data.publish("first", b"3")
    news = subscription.receive(PATIENCE_S) or subscription.receive(PATIENCE_S)
    assert news == [("first", b"3")]
    subscription.close()


def test_a_close_ends_a_receive_of_another_thread(api, name):
    subscription = SharedData(api, name).subscribe("news")
    found = []

    def listen():
        found.append(subscription.receive(PATIENCE_S))  # the subscription begins
        found.append(subscription.receive(PATIENCE_S))

    thread = threading.Thread(target=listen)
    thread.start()
    wait_for(lambda: len(found) == 1, "not subscribed")
    began = time.monotonic()
    subscription.close()
    thread.join()

    assert found[1] == []
    assert time.monotonic() - began < PATIENCE_S / 2


def test_a_subscription_that_was_cut_says_so_when_it_begins_again(api, name, raw):
    subscription = SharedData(api, name).subscribe("news")
    assert subscription.receive(PATIENCE_S) == [("news", None)]
    raw.client_kill_filter(_type="pubsub")
    found = []
    while not found:
        found = subscription.receive(PATIENCE_S)

    assert found == [("news", None)]
    subscription.close()


def test_a_subscription_needs_a_channel(api, name):
    with pytest.raises(rmq.ConfigurationError, match="no channel"):
        SharedData(api, name).subscribe().receive()
