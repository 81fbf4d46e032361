"""Tests of `tests/integration/test_offloaded.py` on a cluster."""

from tests.cluster.adopting import adopt

adopt("test_offloaded", globals())
