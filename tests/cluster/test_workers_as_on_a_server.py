"""Tests of workers that were written for a single server, on a cluster: left to CI.

How workers meet several nodes is shown by the other files of this folder.
"""

from __future__ import annotations

import pytest

from tests.cluster.adopting import adopt

pytestmark = pytest.mark.slow
# These look at one server: at an ACL that only one node has, at the pool of its connections, at the
# counts of all slots at one moment (nodes are asked one by one, so a message may be counted twice).
OF_ONE_SERVER = {
    "test_no_more_than_prefetch_are_in_flight",
    "test_a_refusal_is_logged_once_and_the_worker_goes_on",
    "test_nothing_is_left_of_a_worker_that_has_stopped",
}

for _module in ("test_worker", "test_worker_batches", "test_schedules"):
    adopt(_module, globals(), OF_ONE_SERVER)
