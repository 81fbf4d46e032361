import pytest

import rmq
from rmq.outbox import Outbox


def test_resend_intervals_grow_without_jitter():
    outbox = Outbox(max_sends=5, resend=rmq.Exponential(base=60, cap=300))

    assert [outbox.resend_after_ms(n) // 1000 for n in range(1, 7)] == [60, 120, 240, 300, 300, 300]
    assert Outbox().resend_after_ms(1) == 60_000
    assert Outbox().resend_after_ms(16) == 3_600_000


def test_a_message_is_sent_16_times_at_most_unless_the_outbox_is_told_otherwise() -> None:
    assert Outbox().max_sends == 16


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_sends": 0}, "max_sends"),
        ({"max_body": 17 * 1024 * 1024}, "max_body"),
        ({"resend": "immediate"}, "no time to confirm"),
        ({"resend": 5}, "retry"),
        ({"log_for": -1}, "log_for"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, message):
    with pytest.raises(rmq.ConfigurationError, match=message):
        Outbox(**arguments)
