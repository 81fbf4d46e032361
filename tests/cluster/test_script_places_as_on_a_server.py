"""Tests of `tests/integration/test_script_places.py` on a cluster."""

from tests.cluster.adopting import adopt

ONE_SERVER = {
    "test_every_engine_names_a_line_that_is_translated",  # it has servers of its own
}
adopt("test_script_places", globals(), but=ONE_SERVER)
