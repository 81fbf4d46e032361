"""Tests that were written for a single server, on a cluster: the same names, the same claims.

Those of workers: `test_workers_as_on_a_server.py`.
"""

from __future__ import annotations

from tests.cluster.adopting import adopt

MODULES = (
    "test_life", "test_sending", "test_pages", "test_durability", "test_topic_change", "test_query",
    "test_joint_queries", "test_topic_pause", "test_limits", "test_ordered",
)  # fmt: skip
# These look at one server: at an ACL that only one node has, at the counts of all slots at one
# moment (nodes are asked one by one, so a message may be counted twice).
OF_ONE_SERVER = {
    "test_no_more_than_prefetch_are_in_flight",
    "test_a_refusal_is_logged_once_and_the_worker_goes_on",
}
# Of modules that are left to CI: what asks several slots at once.
SCHEDULES = {
    "test_more_schedules_than_a_page_are_listed",
    "test_schedules_go_with_their_topic",
    "test_worker_sends_the_schedules_of_its_topics",
}
AUDIT = {"test_both_admins_find_the_same", "test_it_is_missing_wherever_it_was"}

for _module in MODULES:
    adopt(_module, globals(), OF_ONE_SERVER)
adopt("test_schedules", globals(), only=SCHEDULES)
adopt("test_audit", globals(), only=AUDIT)
