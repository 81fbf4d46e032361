"""The tests of hand-overs, on a cluster."""

from __future__ import annotations

from tests.cluster.adopting import adopt

# These publish where nobody listens on a cluster, or want credits in several slots, which there are
# none of on a cluster.
OF_ONE_SERVER = {
    "test_what_a_stranger_publishes_is_ignored",
    "test_slots_hand_over_one_by_one_and_the_others_credits_are_withdrawn",
    "test_no_more_are_received_than_asked_for_though_each_slot_hands_over_one",
}

adopt("test_hand_over", globals(), OF_ONE_SERVER)
