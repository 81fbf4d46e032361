"""The use that is made of the sentinels' answers. Real ones: tests/integration/test_sentinel.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import redis

from rmq.errors import ConfigurationError
from rmq.kernel.transport.sentinel import master_finder
from rmq.kernel.transport.sentinel.master_finder import NoMaster
from rmq.kernel.transport.sentinel.master_finder_blocking import MasterFinder
from rmq.kernel.transport.url import HostPort, Sentinels

A, B, C = ("a", 1), ("b", 2), ("c", 3)
OLD, NEW = ("10.0.0.1", 6379), ("10.0.0.2", 6379)
AWAY = redis.ConnectionError("refused")
UNKNOWN = redis.ResponseError("No such master with that name")


def named(address: HostPort, flags: str = "master") -> list[bytes]:
    host, port = address
    words = ("name", "orders", "ip", host, "port", str(port), "flags", flags)
    return [word.encode() for word in words]


class Scripted:
    """Sentinels that answer what a test says."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.now = 100.0

    def connect(self, sentinel: HostPort) -> Any:
        return Connection(self, sentinel[0])

    def finder(self, monkeypatch: pytest.MonkeyPatch) -> MasterFinder:
        monkeypatch.setattr(master_finder.time, "monotonic", lambda: self.now)
        return MasterFinder(Sentinels((A, B, C), "orders", ""), "url", self.connect)


class Connection:
    def __init__(self, scripted: Scripted, name: str) -> None:
        self.scripted, self.name = scripted, name

    def connect(self) -> None:
        self.scripted.asked.append(self.name)

    def send_packed_command(self, packed: Any, check_health: bool) -> None:
        assert b"SENTINEL" in packed[0]

    def read_response(self) -> Any:
        answer = self.scripted.answers[self.name]
        if isinstance(answer, tuple):
            self.scripted.now += answer[0]
            answer = answer[1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def disconnect(self, nowait: bool) -> None:
        pass


def test_the_sentinel_that_answered_is_kept_and_asked_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sentinels = Scripted(a=AWAY, b=named(OLD), c=named(OLD))
    finder = sentinels.finder(monkeypatch)

    assert finder.locate() == OLD
    sentinels.now += 2
    assert finder.locate() == OLD
    assert sentinels.asked == ["a", "b"]  # b's connection was kept


def test_it_asks_once_a_second_and_counts_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    sentinels = Scripted(a=named(OLD))
    finder = sentinels.finder(monkeypatch)
    finder.refresh()
    sentinels.answers["a"] = named(NEW)
    sentinels.now += 0.9
    finder.refresh()
    assert (finder.master, finder.moves) == (OLD, 0)

    sentinels.now += 0.2
    finder.refresh()
    assert (finder.master, finder.moves) == (NEW, 1)


def test_a_master_that_a_sentinel_cannot_reach_is_not_connected_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    down = named(OLD, "s_down,master")
    sentinels = Scripted(a=down, b=named(NEW), c=down)
    finder = sentinels.finder(monkeypatch)
    assert finder.locate() == NEW  # another sentinel knows more

    sentinels.answers["b"] = named(NEW, "master,o_down")
    sentinels.now += 1
    with pytest.raises(NoMaster, match="cannot reach the master"):
        finder.locate()


def test_a_master_is_confirmed_by_an_answer_that_came_after_it_was_in_doubt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sentinels = Scripted(a=named(OLD), b=AWAY, c=AWAY)
    finder, connection = sentinels.finder(monkeypatch), SimpleNamespace(host=OLD[0], port=OLD[1])
    finder.locate()

    def confirmed(answer: Any) -> bool:
        sentinels.answers["a"] = answer
        finder.forget()
        finder.refresh()
        return finder.confirms(connection)

    assert confirmed(named(OLD))
    assert not confirmed(named(OLD, "master,failover_in_progress"))
    assert not confirmed(named(OLD, "master,s_down"))
    assert not confirmed(named(NEW))
    assert confirmed(named(OLD))
    assert confirmed(AWAY), "without sentinels it goes on with the master it knows"


def test_silent_sentinels_are_not_asked_after_each_slow_reply(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sentinels = Scripted(a=named(OLD), b=AWAY, c=AWAY)
    finder = sentinels.finder(monkeypatch)
    finder.locate()
    sentinels.answers["a"] = (0.5, AWAY)
    sentinels.now += 2
    finder.refresh()
    asked = len(sentinels.asked)

    finder.forget()
    finder.refresh()
    assert len(sentinels.asked) == asked


def test_without_sentinels_it_goes_on_with_the_master_it_knows_and_asks_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sentinels = Scripted(a=named(OLD), b=AWAY, c=AWAY)
    finder = sentinels.finder(monkeypatch)
    assert finder.locate() == OLD
    slow = (0.5, AWAY)
    sentinels.answers = {"a": slow, "b": slow, "c": slow}

    sentinels.now += 2
    assert finder.locate() == OLD  # takes 1.5 s of asking, and 0.5 for the kept connection
    asked = len(sentinels.asked)
    sentinels.now += 14
    finder.refresh()
    assert len(sentinels.asked) == asked
    sentinels.now += 10
    finder.refresh()
    assert len(sentinels.asked) > asked
    assert finder.moves == 0


@pytest.mark.parametrize(
    ("answers", "kind", "text"),
    [
        ((UNKNOWN, UNKNOWN, UNKNOWN), ConfigurationError, "no sentinel knows the service 'orders'"),
        ((UNKNOWN, AWAY, UNKNOWN), NoMaster, "no sentinel of 3 names a master"),
        ((AWAY, AWAY, AWAY), NoMaster, "b:2: refused"),
        (
            (redis.AuthenticationError("WRONGPASS no"),) * 3,
            ConfigurationError,
            "refuse access .*check sentinel_username and sentinel_password",
        ),
    ],
)
def test_an_error_says_why_there_is_no_master_and_what_can_be_repeated(
    monkeypatch: pytest.MonkeyPatch, answers: Any, kind: type[Exception], text: str
) -> None:
    finder = Scripted(**dict(zip("abc", answers, strict=True))).finder(monkeypatch)

    finder.refresh()  # raises nothing
    with pytest.raises(kind, match=text):
        finder.locate()
