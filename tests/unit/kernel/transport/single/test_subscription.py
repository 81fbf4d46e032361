"""When a silent subscription is sent a PING."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rmq.kernel.transport.single import subscription
from rmq.kernel.transport.single.subscription import PING_S, SubscribedConnection
from tests.unit.monotonic import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(subscription, "time", made)
    return made


def test_a_subscription_is_sent_one_ping_after_a_long_silence(clock: Clock) -> None:
    reader = SimpleNamespace(last_reply_at=clock.now)
    subscribed = SubscribedConnection(None, 1, reader=reader)
    assert not subscribed.is_to_ping()

    clock.now += PING_S + 0.1

    assert subscribed.is_to_ping()
    assert not subscribed.is_to_ping()  # that one is unanswered


def test_any_reply_is_a_sign_of_life(clock: Clock) -> None:
    reader = SimpleNamespace(last_reply_at=clock.now)
    subscribed = SubscribedConnection(None, 1, reader=reader)
    clock.now += PING_S + 0.1
    subscribed.is_to_ping()
    reader.last_reply_at = clock.now = clock.now + 0.1

    assert not subscribed.is_to_ping()
    clock.now += PING_S + 0.1
    assert subscribed.is_to_ping()
