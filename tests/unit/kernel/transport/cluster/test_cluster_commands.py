"""The next thing that a call on a cluster sends, after each refusal of a node."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import redis
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    ResponseError,
    TryAgainError,
)

from rmq.errors import AccessDenied, OutcomeUnknown, ScriptFailed, Unavailable
from rmq.kernel.core.settings import Replicated
from rmq.kernel.transport import url
from rmq.kernel.transport.cluster import cluster_commands
from rmq.kernel.transport.cluster.cluster_commands import ClusterCommands
from rmq.kernel.transport.connections.failures import NotConnected, StaleConnection
from rmq.kernel.transport.connections.operations import ExchangeAll, Pause, RefreshTable
from rmq.kernel.transport.connections.pool import SLOW_S
from rmq.kernel.transport.flow.steps import Command
from rmq.kernel.transport.hash_slots import HASH_SLOTS, SlotTable, hash_slot
from rmq.kernel.transport.lua.script_loader import Script

A, B = ("a", 1), ("b", 2)
SCRIPT = Script("send", "return 1")
KEY = b"{k}"
HIGH, LOW = b"{high}", b"{b}"
assert hash_slot(LOW) < HASH_SLOTS // 2 <= hash_slot(HIGH)


def command(key: bytes = KEY) -> Command[Any]:
    return Command(SCRIPT, [key], [], lambda reply: reply, marks_repeats=True)


class Nodes:
    """Drives a generator of operations; `answers` are the replies to one write after the other."""

    def __init__(self, *answers: Any, retry_for: float = 10.0) -> None:
        self.answers = list(answers)
        self.sent: list[tuple[str, bytes]] = []  # to which node, and what
        self.pauses: list[float] = []
        self.refreshed = 0
        self.on_refresh: Callable[[], object] = lambda: None
        self.brief: list[bool] = []  # of each write: whether its replies are waited for briefly
        self.table = SlotTable([A])
        half = HASH_SLOTS // 2
        self.table.read([[0, half - 1, [b"a", 1]], [half, HASH_SLOTS - 1, [b"b", 2]]], A)
        self.table.note_moved(hash_slot(KEY), A)
        address = url.parse("redis+cluster://a:1")
        self.calls = ClusterCommands(address, retry_for, 10.0, self.table, {})

    def drive(self, operations: Any) -> Any:
        value: Any = None
        try:
            while True:
                value = self._perform(operations.send(value))
        except StopIteration as stop:
            return stop.value

    def _perform(self, operation: Any) -> Any:
        if isinstance(operation, Pause):
            self.pauses.append(operation.seconds)
        elif isinstance(operation, RefreshTable):
            self.refreshed += 1
            self.on_refresh()
        else:
            assert isinstance(operation, ExchangeAll)
            return [self._answer(part) for part in operation.parts]
        return None

    def _answer(self, part: Any) -> Any:
        self.sent.append((part.node[0], part.packed))
        self.brief.append(part.is_brief)
        answer = self.answers.pop(0)
        if callable(answer):
            answer = answer()
        if isinstance(answer, BaseException) and not isinstance(answer, ResponseError):
            return answer
        replies = answer if isinstance(answer, list) else [answer]
        return [b"OK"] * (part.count - len(replies)) + replies


def run(nodes: Nodes) -> Any:
    return nodes.drive(nodes.calls.command(command()))


def test_moved_is_repeated_at_the_other_node_at_once_and_remembered() -> None:
    nodes = Nodes(MovedError(f"{hash_slot(KEY)} b:2"), 7, 8)

    assert run(nodes) == 7
    assert run(nodes) == 8
    assert [node for node, _ in nodes.sent] == ["a", "b", "b"]
    assert nodes.pauses == []


def test_ask_goes_with_asking_in_one_write_and_is_not_remembered() -> None:
    nodes = Nodes(AskError(f"{hash_slot(KEY)} b:2"), 7, 8)

    assert run(nodes) == 7
    assert run(nodes) == 8
    assert [node for node, _ in nodes.sent] == ["a", "b", "a"]
    asking = nodes.sent[1][1]
    assert asking.index(b"ASKING") < asking.index(b"EVALSHA")
    assert b"ASKING" not in nodes.sent[2][1]


def test_a_right_to_ask_that_is_missing_is_an_error_and_not_asked_for_again() -> None:
    refused = NoPermissionError("User app has no permissions to run the 'asking' command")
    moved = MovedError(f"{hash_slot(KEY)} a:1")
    nodes = Nodes(AskError(f"{hash_slot(KEY)} b:2"), [refused, moved], [7])

    with pytest.raises(AccessDenied, match=r"\+asking"):
        run(nodes)


def test_a_script_that_the_asked_node_lacks_is_loaded_there() -> None:
    ask = AskError(f"{hash_slot(KEY)} b:2")
    nodes = Nodes(ask, NoScriptError("no"), 7)

    assert run(nodes) == 7
    assert [node for node, _ in nodes.sent] == ["a", "b", "b"]
    last = nodes.sent[2][1]
    assert last.index(b"LOAD") < last.index(b"ASKING") < last.index(b"EVALSHA")


def test_a_script_is_loaded_only_after_its_node_said_so() -> None:
    nodes = Nodes(NoScriptError("no"), 7, 8)

    assert run(nodes) == 7
    assert run(nodes) == 8
    assert [b"LOAD" in packed for _, packed in nodes.sent] == [False, True, False]


def test_a_refused_load_ends_the_call_at_once() -> None:
    nodes = Nodes(NoScriptError("no"), [ResponseError("Error compiling script"), NoScriptError()])

    with pytest.raises(ScriptFailed, match="compiling"):
        run(nodes)
    assert nodes.pauses == []


def test_a_load_that_is_forbidden_is_done_by_eval() -> None:
    forbidden = NoPermissionError("User app has no permissions to run the 'script|load' command")
    without_keys = ResponseError("user_script:1: no keys")
    nodes = Nodes(NoScriptError("no"), [forbidden, NoScriptError("no")], without_keys, 7)

    assert run(nodes) == 7
    assert [b"$4\r\nEVAL\r" in packed for _, packed in nodes.sent] == [False, False, True, False]
    assert nodes.pauses == []


def test_a_load_that_is_refused_for_now_is_repeated() -> None:
    loading = redis.exceptions.BusyLoadingError("Redis is loading the dataset in memory")
    nodes = Nodes(NoScriptError("no"), [loading, NoScriptError("no")], 7)

    assert run(nodes) == 7
    assert len(nodes.pauses) == 1


def test_a_script_that_the_node_has_needs_no_right_to_load_it() -> None:
    forbidden = NoPermissionError("User app has no permissions to run the 'script|load' command")
    nodes = Nodes([forbidden, 7, 8], [7, 8])

    for _ in range(2):
        values, _ = nodes.drive(nodes.calls.pipeline([command(), command()], None))
        assert values == [7, 8]
    assert [b"LOAD" in packed for _, packed in nodes.sent] == [True, False]


def test_a_script_is_loaded_beforehand_where_a_wait_for_copies_follows() -> None:
    nodes = Nodes([b"sha", 7, 1])

    assert nodes.drive(nodes.calls.pipeline([command()], Replicated(1, 0.2))) == ([7], 1)
    assert b"LOAD" in nodes.sent[0][1], "behind NOSCRIPT the wait would last for its timeout"


def test_a_node_that_was_away_may_have_lost_its_scripts() -> None:
    nodes = Nodes([b"sha", 7, 1], redis.ConnectionError("lost"), [b"sha", 8, 1])

    for value in (7, 8):
        written = nodes.calls.pipeline([command()], Replicated(1, 0.2))
        assert nodes.drive(written) == ([value], 1)
    assert [b"LOAD" in packed for _, packed in nodes.sent] == [True, False, True]


# --- replies that come late ----------------------------------------------------------------------


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Any]:
    """Makes an answer that takes long, for `Nodes`."""
    now = time.monotonic()
    monkeypatch.setattr(cluster_commands.time, "monotonic", lambda: now)

    def answer(replies: Any) -> Any:
        def wait() -> Any:
            nonlocal now
            now += SLOW_S + 0.01
            return replies

        return wait

    return answer


@pytest.mark.parametrize("retry_for", [0, 10])
def test_a_late_reply_of_a_former_master_is_asked_for_again(late: Any, retry_for: float) -> None:
    nodes = Nodes(late(7), 8, retry_for=retry_for)
    nodes.on_refresh = lambda: nodes.table.note_moved(hash_slot(KEY), B)  # as the others say

    assert run(nodes) == 8
    assert [node for node, _ in nodes.sent] == ["a", "b"]
    assert len(nodes.sent[1][1]) > len(nodes.sent[0][1]), "it is marked as a repetition"


def test_a_late_reply_of_a_master_counts(late: Any) -> None:
    nodes = Nodes(late(7))

    assert run(nodes) == 7
    assert nodes.refreshed == 1


def test_of_a_pipeline_only_the_late_replies_of_a_former_master_are_asked_for_again(
    late: Any,
) -> None:
    nodes = Nodes(late([1]), [2], [3])
    nodes.on_refresh = lambda: nodes.table.note_moved(hash_slot(LOW), B)

    values, _ = nodes.drive(nodes.calls.pipeline([command(LOW), command(HIGH)], None))
    assert values == [3, 2]


def test_a_late_reply_behind_asking_counts(late: Any) -> None:
    nodes = Nodes(AskError(f"{hash_slot(KEY)} b:2"), late(7))

    assert run(nodes) == 7


def test_the_node_that_answered_late_is_the_last_to_be_asked_who_is_master(late: Any) -> None:
    nodes = Nodes(late(7))
    first: list[Any] = []
    nodes.on_refresh = lambda: first.append(nodes.table.candidates()[0])
    run(nodes)
    assert first == [B]


def test_the_table_is_asked_for_briefly_at_all_nodes_before_any_is_waited_for() -> None:
    silent = redis.TimeoutError("no reply")
    nodes = Nodes(silent, silent, silent, [[[0, HASH_SLOTS - 1, [b"b", 2]]]])
    nodes.drive(nodes.calls.read_table())

    assert nodes.brief == [True, True, False, False]
    assert nodes.table.masters() == [B]


def test_tryagain_pauses_briefly_and_reads_no_table() -> None:
    nodes = Nodes(*[TryAgainError("no")] * 8, 7)

    assert run(nodes) == 7
    assert len(nodes.pauses) == 8
    assert 0.005 < min(nodes.pauses) <= max(nodes.pauses) <= 0.1
    assert nodes.refreshed == 0


@pytest.mark.parametrize(
    "error", [ClusterDownError("down"), NotConnected("refused"), redis.ConnectionError("lost")]
)
def test_a_node_that_is_away_has_the_table_read_again(error: Exception) -> None:
    nodes = Nodes(error, 7)

    assert run(nodes) == 7
    assert nodes.refreshed == 1
    assert len(nodes.pauses) == 1


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (redis.TimeoutError("no reply"), OutcomeUnknown),
        (redis.ConnectionError("lost"), OutcomeUnknown),
        (NotConnected("refused"), Unavailable),
        (ClusterDownError("down"), Unavailable),
        (TryAgainError("moving"), Unavailable),
        (ResponseError("ERR no"), ScriptFailed),
    ],
)
def test_only_a_lost_reply_is_unknown(error: Exception, raised: type[Exception]) -> None:
    with pytest.raises(raised):
        run(Nodes(error, retry_for=0))


def test_a_call_is_marked_as_repeated_only_after_a_lost_reply() -> None:
    marks: dict[type[Exception], Callable[[], Exception]] = {
        MovedError: lambda: MovedError(f"{hash_slot(KEY)} b:2"),
        redis.ConnectionError: lambda: redis.ConnectionError("lost"),
    }
    lengths = []
    for make in marks.values():
        nodes = Nodes(make(), 7)
        run(nodes)
        lengths.append(len(nodes.sent[1][1]) - len(nodes.sent[0][1]))
    assert lengths[0] == 0 < lengths[1]


def test_a_pipeline_is_divided_by_node_and_only_what_was_refused_is_repeated() -> None:
    nodes = Nodes([1, 3], [TryAgainError("moving")], [2])

    values, _ = nodes.drive(nodes.calls.pipeline([command(LOW), command(HIGH), command(LOW)], None))

    assert values == [1, 2, 3]
    assert [node for node, _ in nodes.sent] == ["a", "b", "b"]
    assert b"LOAD" in nodes.sent[0][1]
    assert b"LOAD" not in nodes.sent[2][1]


def test_a_pipeline_that_was_done_in_part_does_not_end_as_not_done() -> None:
    nodes = Nodes([1], NotConnected("refused"), retry_for=0)

    with pytest.raises(OutcomeUnknown):
        nodes.drive(nodes.calls.pipeline([command(LOW), command(HIGH)], None))


def test_each_node_waits_for_copies_and_the_least_count_is_told() -> None:
    nodes = Nodes([1, 2], [2, 1])

    values, copies = nodes.drive(
        nodes.calls.pipeline([command(LOW), command(HIGH)], Replicated(1, 0.1))
    )

    assert values == [1, 2]
    assert copies == 1
    assert all(b"WAIT" in packed for _, packed in nodes.sent)


def test_keys_of_several_slots_are_asked_apart_and_told_in_order() -> None:
    nodes = Nodes([[b"1", b"3"]], [[b"2"]])

    reply = nodes.drive(nodes.calls.raw_command("x", ["MGET", LOW, HIGH, LOW]))

    assert reply == [b"1", b"2", b"3"]


def test_scan_walks_all_masters() -> None:
    nodes = Nodes([[b"5", [b"x"]]], [[b"0", [b"y"]]], [[b"0", [b"z"]]])
    cursor, keys = b"0", []
    while True:
        cursor, page = nodes.drive(nodes.calls.raw_command("x", ["SCAN", cursor, "COUNT", 9]))
        keys += page
        if cursor == b"0":
            break
    assert keys == [b"x", b"y", b"z"]
    assert [node for node, _ in nodes.sent] == ["a", "a", "b"]


# --- calls that fail fast ------------------------------------------------------------------------


def quick(key: bytes = KEY) -> Command[Any]:
    made = command(key)
    made.fails_fast = True
    return made


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (NotConnected("refused"), Unavailable),
        (ClusterDownError("down"), Unavailable),
        (redis.ConnectionError("lost"), OutcomeUnknown),
    ],
)
def test_a_call_that_fails_fast_is_not_repeated_while_its_node_is_away(
    error: Exception, raised: type[Exception]
) -> None:
    nodes = Nodes(error, retry_for=7.0)
    with pytest.raises(raised) as found:
        nodes.drive(nodes.calls.command(quick()))
    assert found.value._repeat_for == 7.0
    assert nodes.pauses == []


def test_a_node_that_is_away_is_not_asked_again_at_once_by_calls_that_fail_fast() -> None:
    nodes = Nodes(NotConnected("refused"))
    for _ in range(3):
        with pytest.raises(Unavailable):
            nodes.drive(nodes.calls.command(quick()))
    assert len(nodes.sent) == 1


def test_the_death_of_an_old_connection_does_not_fail_a_call() -> None:
    nodes = Nodes(StaleConnection("closed"), 7)
    assert nodes.drive(nodes.calls.command(quick())) == 7


def test_a_call_that_fails_fast_is_not_repeated_at_a_node_that_stands_still(late: Any) -> None:
    nodes = Nodes(late(StaleConnection("timed out")))
    with pytest.raises(OutcomeUnknown):
        nodes.drive(nodes.calls.command(quick()))
    assert len(nodes.sent) == 1


def test_calls_that_fail_fast_wait_briefly_for_a_reply_and_others_do_not() -> None:
    nodes = Nodes([b"sha", 7], [b"sha", 8])
    nodes.drive(nodes.calls.pipeline([quick(LOW), command(HIGH)], None))
    assert nodes.brief == [True, False]


def test_a_call_that_fails_fast_follows_its_slot() -> None:
    nodes = Nodes(MovedError(f"{hash_slot(KEY)} b:2"), TryAgainError("no"), NoScriptError("no"), 7)
    assert nodes.drive(nodes.calls.command(quick())) == 7


def test_of_a_pipeline_only_the_calls_to_the_node_that_is_away_fail() -> None:
    nodes = Nodes(NotConnected("refused"), [b"sha", 8])
    (low, high), _ = nodes.drive(nodes.calls.pipeline([quick(LOW), quick(HIGH)], None))
    assert isinstance(low, Unavailable)
    assert high == 8


def test_next_ready_says_of_slots_whose_master_is_away_that_a_visit_tells() -> None:
    def ready(*answers: Any) -> Any:
        script, keys = Script("next_ready", "return 1"), [LOW, LOW, LOW, HIGH, HIGH, HIGH]
        nodes = Nodes(*answers)
        asked = Command(script, keys, [1, 1, b"s"], list, fails_fast=True)
        return nodes.drive(nodes.calls.command(asked))

    assert ready(NotConnected("refused"), [b"sha", [-1]]) == [0, -1]
    with pytest.raises(Unavailable):
        ready(NotConnected("refused"), NotConnected("refused"))
