"""Tests of `tests/integration/test_follow_ups.py` on a cluster: on several nodes."""

from tests.cluster.adopting import adopt

adopt("test_follow_ups", globals())
