"""The tests of hand-overs, on a cluster."""

from __future__ import annotations

from tests.cluster.adopting import adopt

# These have a server of their own, publish where nobody listens on a cluster, or want credits in
# several slots, which there are none of on a cluster.
OF_ONE_SERVER = {
    "own_server",
    "test_a_message_for_a_connection_that_died_comes_soon_and_costs_no_retry",
    "test_the_script_that_withdraws_is_loaded_where_the_server_lost_it",
    "test_what_a_stranger_publishes_is_ignored",
    "test_slots_hand_over_one_by_one_and_the_others_credits_are_withdrawn",
}

adopt("test_hand_over", globals(), OF_ONE_SERVER)
