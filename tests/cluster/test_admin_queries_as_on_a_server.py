"""Tests of `tests/integration/test_admin_queries.py` on a cluster."""

from tests.cluster.adopting import adopt

# It lists keys by KEYS, which asks one node.
adopt(
    "test_admin_queries",
    globals(),
    {
        "test_a_sink_that_is_forgotten_publishes_its_batch_again",
        "test_what_is_no_report_counts_as_none",
    },
)
