"""Tests of `tests/integration/test_audit.py` on a cluster; `test_as_on_a_server.py` has two."""

import pytest

from tests.cluster.adopting import adopt

pytestmark = pytest.mark.slow

# It makes a server forget, which is one of three here.
adopt("test_audit", globals(), {"test_failover_that_lost_the_last_writes_is_noticed"})
