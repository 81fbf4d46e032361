"""Tests of `tests/integration/test_batch_admin.py` on a cluster: on several nodes."""

from tests.cluster.adopting import adopt

adopt("test_batch_admin", globals())
