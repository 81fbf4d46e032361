"""Tests of `tests/integration/test_script_places.py` on a cluster."""

import pytest

from tests.cluster.adopting import adopt

pytestmark = pytest.mark.slow  # the same on one server is in `make test`

ONE_SERVER = {
    "test_every_engine_names_a_line_that_is_translated",  # it has servers of its own
}
adopt("test_script_places", globals(), but=ONE_SERVER)
