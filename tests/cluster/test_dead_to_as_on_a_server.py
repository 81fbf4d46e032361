"""Tests of `tests/integration/test_dead_to.py` on a cluster: topics on different nodes."""

from tests.cluster.adopting import adopt

adopt("test_dead_to", globals())
