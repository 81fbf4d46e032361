import crcmod.predefined
import pytest
from hypothesis import given, strategies as st

from rmq.errors import InvalidType
from rmq.kernel.topic.slot_choice import slot_of, slot_rotation

# Golden vectors, for whoever writes a client in another language.
VECTORS = [
    ("123456789", 0xCBF43926),
    ("", 0),
    ("user:42", 0x646F0D86),
    ("é", 0x0E048D3E),
]


@given(st.text(), st.integers(1, 1024))
def test_the_slot_is_the_crc_32_that_crcmod_computes_too(basis: str, slots: int) -> None:
    independent = crcmod.predefined.mkCrcFun("crc-32")
    assert slot_of(basis, slots) == independent(basis.encode()) % slots


@pytest.mark.parametrize(("basis", "crc"), VECTORS)
def test_the_slot_of_a_golden_vector_stands(basis: str, crc: int) -> None:
    assert crcmod.predefined.mkCrcFun("crc-32")(basis.encode()) == crc
    assert [slot_of(basis, n) for n in (1, 8, 1024)] == [0, crc % 8, crc % 1024]


def test_text_and_its_utf8_bytes_share_a_slot() -> None:
    assert slot_of("é", 1000) == slot_of("é".encode(), 1000)


def test_other_types_are_refused() -> None:
    with pytest.raises(InvalidType, match="slot_basis"):
        slot_of(7, 8)  # type: ignore[arg-type]


def test_messages_without_a_basis_are_dealt_evenly() -> None:
    spread = slot_rotation(7, 3)
    dealt = [next(spread) for _ in range(70)]
    assert {dealt.count(slot) for slot in range(7)} == {10}
