"""Tests of `tests/integration/test_redrive_to.py` on a cluster: on several nodes."""

from tests.cluster.adopting import adopt

adopt("test_redrive_to", globals())
