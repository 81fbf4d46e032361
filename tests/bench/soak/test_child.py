from __future__ import annotations

from bench.soak.child import digest


def test_a_digest_is_of_the_body_and_not_of_its_order():
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert digest({"a": 1, "b": 2}) != digest({"a": 1, "b": 3})
