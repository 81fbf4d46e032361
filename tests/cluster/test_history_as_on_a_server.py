"""Tests of `tests/integration/test_history.py` on a cluster: slots are on several nodes."""

from tests.cluster.adopting import adopt

adopt(
    "test_history",
    globals(),
    only={
        "test_a_large_body_and_messages_of_former_slots_are_read",
        "test_a_position_from_before_a_resize_shows_gaps_in_new_slots",
        "test_a_range_of_time_and_positions_select_messages",
        "test_a_reader_behind_the_kept_part_gets_an_error",
        "test_each_reader_gets_each_acked_message_once",
    },
)
