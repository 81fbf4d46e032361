from hypothesis import given, strategies as st

from rmq.kernel.core.ids import MessageId
from rmq.kernel.core.message import Receipt
from rmq.kernel.core.score import (
    family,
    receipt_deadline_ms,
    receipt_retries_left,
    receipt_score,
    receipt_with_deadline,
)


@given(st.integers(1_600_000_000, 4_000_000_000), st.integers(0, 16), st.integers(0, 10**12))
def test_a_receipt_is_exact_until_2096(deadline: int, left: int, delivery: int) -> None:
    score = receipt_score(deadline, left, delivery)
    assert receipt_deadline_ms(score) == deadline * 1000
    assert receipt_retries_left(score) == left
    assert score % 1 == delivery % 2048 / 2048
    assert float(repr(score)) == score
    assert receipt_with_deadline(score, deadline + 7) == receipt_score(deadline + 7, left, delivery)
    receipt = Receipt(MessageId(bytes(16)), score)
    assert Receipt.parse(str(receipt)) == receipt


def test_score_families_begin_at_their_limits() -> None:
    assert [family(s) for s in (-(2.0**32), -1, 0, 16.9, 17, 1_048_575.9, 1e12)] == [
        "held", "held", "retry", "retry", "priority", "priority", "timed",
    ]  # fmt: skip
