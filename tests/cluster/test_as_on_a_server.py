"""Tests that were written for a single server, on a cluster: the same names, the same claims."""

from __future__ import annotations

from importlib import import_module

MODULES = (
    "test_life", "test_sending", "test_schedules", "test_pages", "test_durability",
    "test_worker", "test_topic_change", "test_query",
)  # fmt: skip
# These look at one server: at an ACL that only one node has, at the pool of its connections.
OF_ONE_SERVER = {
    "test_a_refusal_is_logged_once_and_the_worker_goes_on",
    "test_nothing_is_left_of_a_worker_that_has_stopped",
}

for _module in MODULES:
    for _name, _value in vars(import_module(f"tests.integration.{_module}")).items():
        _is_fixture = type(_value).__name__ == "FixtureFunctionDefinition"
        if _is_fixture or (_name.startswith("test_") and _name not in OF_ONE_SERVER):
            assert globals().get(_name, _value) is _value, f"{_name} is there twice"
            globals()[_name] = _value
