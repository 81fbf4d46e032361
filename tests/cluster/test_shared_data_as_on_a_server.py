"""Tests of `tests/integration/test_shared_data.py` on a cluster: each name is on its own server."""

from tests.cluster.adopting import adopt

adopt(
    "test_shared_data",
    globals(),
    only={
        "test_a_set_has_each_member_once_and_may_expire",
        "test_a_subscription_that_waits_follows_new_channels_at_once",
        "test_values_of_a_list_are_popped_once_in_their_order",
    },
)
