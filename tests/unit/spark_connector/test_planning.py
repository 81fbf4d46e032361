"""Offsets in the checkpoint, and the tasks of a batch."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rmq.errors import ConfigurationError
from spark_connector import offset, planning
from spark_connector.offset import Offset, Position
from spark_connector.planning import Share


def test_an_offset_is_spelled_in_one_order_and_read_again() -> None:
    end = Offset("a", {"b": Position({1: 2, 0: 5}, {0: 3, 1: 0}), "a": Position({0: 1}, {})})

    spelled = end.spell()

    assert list(spelled["topics"]) == ["a", "b"]
    assert list(spelled["topics"]["b"]["slots"]) == ["0", "1"]
    assert spelled["topics"]["b"]["held"] == {"0": 3}
    assert offset.read(spelled).spell() == spelled
    assert end.messages == 3


def test_an_offset_of_the_version_before_is_of_one_topic() -> None:
    given = {"v": 1, "run": "a", "topic": "orders", "slots": {"0": 7, "1": 2}, "held": {"0": 4}}

    assert offset.read(given) == Offset("a", {"orders": Position({0: 7, 1: 2}, {0: 4})})


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"index": 3}, "is not an offset of RMQ; give the query a new checkpoint together"),
        (None, "is not an offset of RMQ"),
        (Offset("a", {}).spell() | {"v": 3}, "written in format 3 and this RMQ reads 2"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(given: object, told: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^checkpoint: ") as caught:
        offset.read(given)

    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_topic_made_anew_with_fewer_slots_is_refused_and_one_with_more_is_not() -> None:
    offset.check_slots({0: 3}, 8, "orders")
    with pytest.raises(ConfigurationError, match="has 1 slots in Redis and 2 in the checkpoint"):
        offset.check_slots({0: 3, 1: 0}, 1, "orders")


def test_a_batch_is_divided_evenly_and_a_task_reads_several_slots() -> None:
    parts = planning.shares("t", {1: 5, 2: 4}, {0: 10, 1: 35, 2: 4, 3: 2}, {0: 10, 1: 30, 3: 2})

    assert planning.tasks(parts, 1) == [parts]
    assert planning.tasks(parts, 3) == [
        [Share("t", 0, 0, 10, 10), Share("t", 1, 5, 9, 4)],
        [Share("t", 1, 9, 23, 14)],
        [Share("t", 1, 23, 35, 12), Share("t", 3, 0, 2, 2)],
    ]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 41, 42, 100])
def test_every_message_is_in_one_task_and_no_task_is_empty(count: int) -> None:
    held = {slot: slot * 7 % 11 for slot in range(13)}
    parts = planning.shares("t", {}, held, held)

    tasks = planning.tasks(parts, count)

    numbers = [
        (share.slot, number)
        for task in tasks
        for share in task
        for number in range(share.after, share.upto)
    ]
    assert sorted(numbers) == [(slot, n) for slot, n_most in held.items() for n in range(n_most)]
    sizes = [sum(share.held for share in task) for task in tasks]
    assert len(tasks) == min(count, sum(held.values()))
    assert max(sizes) - min(sizes) <= 1


def test_a_slot_whose_numbers_have_gaps_stays_in_one_part() -> None:
    gaps = planning.shares("t", {}, {0: 24, 1: 12}, {0: 12, 1: 12})

    tasks = planning.tasks(gaps, 8)

    assert [share for task in tasks for share in task if share.slot == 0] == [
        Share("t", 0, 0, 24, 12)
    ]
    assert sum(share.held for task in tasks for share in task) == 24


@pytest.mark.parametrize(
    ("messages", "tasks", "rows", "cores", "count"),
    [
        (100_000, None, None, 4, 4),
        (25_000, None, None, 4, 2),
        (900, None, None, 4, 1),
        (900, 4, None, 2, 4),
        (900, 4, 300, 2, 3),
        (100_000, None, 50_000, 64, 2),
    ],
)
def test_as_many_tasks_as_pay(
    messages: int, tasks: int | None, rows: int | None, cores: int, count: int
) -> None:
    assert planning.wanted(messages, tasks, rows, cores) == count


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (["java", "--conf", "spark.master=local[3]"], 3),
        (["java", "-Dspark.master=local[2,4]", "x"], 2),
        (["java", "--master", "local"], 1),
        (["--master", "spark://h:7077", "--conf", "spark.cores.max=24"], 24),
        (["spark.executor.cores=4", "spark.executor.instances=5", "spark.master=yarn"], 20),
        (["spark.default.parallelism=7", "spark.master=local[2]"], 7),
    ],
)
def test_the_cores_of_the_cluster_are_those_that_the_user_has_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], count: int
) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/cmdline").write_text("\0".join(words))
    monkeypatch.setattr(planning, "PROC", tmp_path)

    assert planning.cores_of_cluster(7) == count


def test_without_settings_the_cores_of_this_machine_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 6)

    assert planning.cores_of_cluster(sys.maxsize) == 6
