import hashlib
import multiprocessing
import os
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, strategies as st

from rmq.errors import InvalidType, InvalidValue
from rmq.kernel.core import ids
from rmq.kernel.core.ids import MessageId
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.transport.lua import script_loader


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
    assert made.made_at is not None
    assert abs(made.made_at - datetime.now(UTC)) < timedelta(minutes=5)


def test_ids_of_many_threads_are_distinct_and_grow_in_each() -> None:
    with ThreadPoolExecutor(8) as pool:
        batches = list(pool.map(lambda _: ids.make(3, 7, 1000), range(40)))
    assert len({one for batch in batches for one in batch}) == 40_000
    assert all(batch == sorted(batch) for batch in batches)


def _tail(queue: "multiprocessing.Queue[bytes]") -> None:
    queue.put(bytes(ids.make(0, 0)[0][11:]))


@pytest.mark.posix
def test_a_forked_child_makes_ids_of_its_own() -> None:
    """Peer bug: two processes have the same name, and the jobs of a dead one are not rescued."""
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_tail, args=(queue,))
    child.start()
    theirs = queue.get(timeout=90)
    child.join(90)
    assert child.exitcode == 0
    queue.close()
    assert theirs != ids.make(0, 0)[0][11:]


@pytest.mark.parametrize(
    "bad", ["", "x" * 26, "0" * 25, "0" * 27, "0" * 25 + "1", "é" * 26, "0" * 25 + "\n", b"short"]
)
def test_what_is_no_id_is_refused(bad: object) -> None:
    with pytest.raises(InvalidValue):
        MessageId.parse(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [2, 10, 18, 34])  # base32 of fewer or more whole bytes
def test_the_error_of_a_text_of_another_length_has_the_length_of_an_id(size: int) -> None:
    with pytest.raises(InvalidValue, match="an id is 26 characters of 0-9 a-v"):
        MessageId.parse("0" * size)


def test_another_type_is_refused() -> None:
    with pytest.raises(InvalidType, match="give a MessageId"):
        MessageId.parse(7)  # type: ignore[arg-type]


def test_an_id_that_was_not_awaited_is_refused_with_what_to_do() -> None:
    async def new_id() -> None: ...

    forgotten = new_id()

    with pytest.raises(InvalidType, match=r"id: coroutine \(await it\); give a MessageId"):
        MessageId.parse(forgotten)  # type: ignore[arg-type]
    forgotten.close()


def test_topics_and_prefixes_differ_in_their_check() -> None:
    checks = {ids.topic_check(p, t) for p in ("rmq", "other") for t in ("a", "b", "a_1")}
    assert len(checks) == 6


# --- of a dedup key ------------------------------------------------------------------------------

# Golden vectors, for whoever writes a client in another language: key, slot, check, text of the id.
# The digest is that of `printf KEY | b2sum -l 104`.
DERIVED = [
    (b"order-7", 3, 1234, "lnpl8vh7snlso064q87rm7r31s"),
    ("é".encode(), 0, 0, "sr12852q65cnq00000am4qlj4g"),
    (bytes(200), 1023, 16383, "ilt7551a56b8nvvvvvg3d7ai54"),
]


@pytest.mark.parametrize(("key", "slot", "check", "text"), DERIVED)
def test_the_id_of_a_golden_dedup_key_stands(key: bytes, slot: int, check: int, text: str) -> None:
    made = ids.derive(key, slot, check)
    assert (str(made), made.slot, made.check, made.made_at) == (text, slot, check, None)
    digest = hashlib.blake2b(key, digest_size=13).digest()
    assert made[:8] + made[11:] == bytes((digest[0] | 0x80,)) + digest[1:]


@given(st.lists(st.binary(min_size=1, max_size=200), unique=True), st.integers(0, 1023))
def test_derived_ids_are_distinct_and_never_those_that_are_made(
    keys: list[bytes], slot: int
) -> None:
    found = [ids.derive(key, slot, 5) for key in keys]
    assert len(set(found)) == len(keys)
    assert found == [ids.derive(key, slot, 5) for key in keys]
    assert {one[0] >> 7 for one in found} <= {1}
    assert {one[0] >> 6 for one in ids.make(slot, 5, 10)} == {0}


@given(st.datetimes(datetime(2000, 1, 1), datetime(4199, 1, 1)), st.booleans())
def test_an_id_made_in_any_year_to_come_has_its_time_and_no_mark_but_its_own(
    when: datetime, kept: bool
) -> None:
    at = when.replace(tzinfo=UTC)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ids, "_last", {0: 0})
        patch.setattr(ids.time, "time_ns", lambda: int(at.timestamp() * 1000) * 1_000_000)
        (made,) = ids.make(3, 7, kept=kept)
    assert made[0] >> 6 == kept
    assert made.made_at is not None
    assert abs(made.made_at - at) < timedelta(milliseconds=2)


# --- kept, and members ---------------------------------------------------------------------------


def test_kept_ids_and_others_share_one_growing_count() -> None:
    made = [ids.make(0, 0, 3, kept=n % 2 == 1) for n in range(4)]
    stamps = [int.from_bytes(one[:8], "big") & ~(0x40 << 56) for batch in made for one in batch]

    assert stamps == sorted(set(stamps))
    assert [one[0] >> 6 for batch in made for one in batch] == [0] * 3 + [1] * 3 + [0] * 3 + [1] * 3


def test_a_kept_id_says_when_it_was_made_in_whichever_slot_it_is() -> None:
    (made,) = ids.make(0, 0, kept=True)
    assert made.made_at is not None
    assert abs(made.made_at - datetime.now(UTC)) < timedelta(minutes=5)
    assert made.with_slot(1023, 0x3FFF).made_at == made.made_at
    assert made.with_slot(5, 9).member == made.member


@given(st.binary(min_size=16, max_size=16))
def test_a_member_is_the_id_without_slot_and_check(raw: bytes) -> None:
    made = MessageId(raw)
    assert made.member == ids.member_of(raw) == raw[:8] + raw[11:]
    assert ids.members_of([raw, made]) == [made.member] * 2
    assert type(made.member) is bytes


@given(st.integers(0, 1023), st.text("abc", min_size=1), st.booleans())
def test_a_slot_makes_the_id_of_its_member_again(slot: int, topic: str, kept: bool) -> None:
    keys = SlotKeys("rmq", topic, slot)
    made = ids.make(slot, ids.topic_check("rmq", topic), 3, kept=kept)

    assert [keys.id_of(one.member) for one in made] == made
    assert ids.ids_of([made[0].member, b"", made[2].member], keys.middle) == [made[0], b"", made[2]]
    assert ids.join_ids(b"".join(one.member for one in made), keys.middle) == b"".join(made)
    assert ids.join_ids(b"", keys.middle) == b""


def test_scripts_know_the_length_of_a_member() -> None:
    (length,) = re.findall(
        r"^local MEMBER = (\d+)", script_loader.source("lib/member"), re.MULTILINE
    )
    assert len(ids.make(0, 0)[0].member) == int(length)


def test_a_dedup_key_is_its_utf8() -> None:
    assert ids.key_bytes("é") == ids.key_bytes("é".encode()) == b"\xc3\xa9"
    assert len(ids.key_bytes("é" * 100)) == 200


@pytest.mark.parametrize(
    ("bad", "error", "told"),
    [
        ("", InvalidValue, "dedup_key: 0 bytes; give 1 to 200"),
        ("é" * 101, InvalidValue, "dedup_key: 202 bytes"),
        ("\ud800", InvalidValue, "UTF-8"),
        (7, InvalidType, "dedup_key: int; give str or bytes"),
        (bytearray(b"k"), InvalidType, "bytearray"),
    ],
)
def test_what_is_no_dedup_key_is_refused(bad: object, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        ids.key_bytes(bad)


def test_many_texts_are_those_of_each() -> None:
    made = [*ids.make(3, 77, 300), *ids.make(1023, 0x3FFF, 2), MessageId(bytes(16))]
    strange = [MessageId(os.urandom(16)) for _ in range(50)]

    both = made + strange
    assert ids.join_texts(b"".join(both)).decode() == "".join(map(str, both))
    assert ids.join_texts(b"") == b""


def test_a_run_makes_each_id_when_it_is_asked_for() -> None:
    run = ids.make_range(3, 77, 10)
    made = list(run)

    assert len(run) == 10
    assert made == sorted(set(made))
    assert [run[place] for place in range(10)] == made
    assert run[-1] == made[-1]
    assert list(run[2:8:3]) == made[2:8:3]
    assert run.members() == ids.members_of(run) == [id.member for id in made]
    assert {(type(id), id.slot, id.check) for id in made} == {(MessageId, 3, 77)}
    assert ids.make(3, 77)[0] > made[-1]
    with pytest.raises(IndexError):
        run[10]


def test_an_error_names_the_field_and_id_unless_told() -> None:
    with pytest.raises(InvalidValue, match=r"^id: "):
        MessageId.parse(b"short")
    with pytest.raises(InvalidValue, match=r"^stub: "):
        MessageId.parse(b"short", "stub")


def test_id_of_a_schedule_and_a_time_is_derived_and_no_dedup_keys_id():
    id = ids.derive_scheduled("report", 1_790_000_000_000, 3, 77)

    assert id == ids.derive_scheduled("report", 1_790_000_000_000, 3, 77)
    assert (id.slot, id.check, id.made_at) == (3, 77, None)
    assert id != ids.derive_scheduled("report", 1_790_000_000_001, 3, 77)
    assert id != ids.derive_scheduled("repor", 1_790_000_000_000, 3, 77)
    assert id != ids.derive(b"report:1790000000000", 3, 77)
