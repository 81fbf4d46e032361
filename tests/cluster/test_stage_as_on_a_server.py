"""Tests of `tests/integration/test_stage.py` on a cluster."""

from tests.cluster.adopting import adopt

adopt("test_stage", globals())
