"""Tests of `tests/integration/test_audit.py` on a cluster."""

from tests.cluster.adopting import adopt

# It makes a server forget, which is one of three here.
adopt("test_audit", globals(), {"test_failover_that_lost_the_last_writes_is_noticed"})
