import multiprocessing
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq import ids
from rmq.errors import InvalidType, InvalidValue
from rmq.ids import MessageId


@given(st.binary(min_size=16, max_size=16))
def test_text_and_bytes_are_the_same_id(raw: bytes) -> None:
    made = MessageId(raw)
    assert re.fullmatch(r"[0-9a-v]{26}", str(made))
    assert MessageId.parse(str(made)) == made == MessageId.parse(str(made).upper())


@given(st.lists(st.binary(min_size=16, max_size=16), min_size=2))
def test_text_sorts_as_bytes_do(raws: list[bytes]) -> None:
    assert [str(MessageId(raw)) for raw in sorted(raws)] == sorted(str(MessageId(r)) for r in raws)


@given(st.integers(0, 1023), st.integers(0, 2**14 - 1))
def test_an_id_carries_its_slot_and_its_topic_check(slot: int, check: int) -> None:
    (made,) = ids.make(slot, check)
    assert (made.slot, made.check) == (slot, check)
    assert abs(made.made_at - datetime.now(UTC)) < timedelta(minutes=5)


def test_ids_of_many_threads_are_distinct_and_grow_in_each() -> None:
    with ThreadPoolExecutor(8) as pool:
        batches = list(pool.map(lambda _: ids.make(3, 7, 1000), range(40)))
    assert len({one for batch in batches for one in batch}) == 40_000
    assert all(batch == sorted(batch) for batch in batches)


def _tail(queue: "multiprocessing.Queue[bytes]") -> None:
    queue.put(bytes(ids.make(0, 0)[0][11:]))


def test_a_forked_child_makes_ids_of_its_own() -> None:
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_tail, args=(queue,))
    child.start()
    theirs = queue.get(timeout=20)
    child.join()
    assert theirs != ids.make(0, 0)[0][11:]


@pytest.mark.parametrize(
    "bad", ["", "x" * 26, "0" * 25, "0" * 27, "0" * 25 + "1", "é" * 26, "0" * 25 + "\n", b"short"]
)
def test_what_is_no_id_is_refused(bad: object) -> None:
    with pytest.raises(InvalidValue):
        MessageId.parse(bad)  # type: ignore[arg-type]


def test_another_type_is_refused() -> None:
    with pytest.raises(InvalidType, match="give a MessageId"):
        MessageId.parse(7)  # type: ignore[arg-type]


def test_topics_and_prefixes_differ_in_their_check() -> None:
    checks = {ids.topic_check(p, t) for p in ("rmq", "other") for t in ("a", "b", "a_1")}
    assert len(checks) == 6
