"""Tests of `tests/integration/test_offloaded.py` on a cluster."""

import pytest

from tests.cluster.adopting import adopt

pytestmark = pytest.mark.slow  # the same on one server is in `make test`

adopt("test_offloaded", globals())
