"""Tests of `tests/integration/test_large_bodies.py` on a cluster."""

from tests.cluster.adopting import adopt

adopt("test_large_bodies", globals())
