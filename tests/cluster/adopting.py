"""Takes tests that were written for a single server into a module of this folder."""

from __future__ import annotations

import inspect
from collections.abc import Container
from importlib import import_module
from typing import Any

# Refused before anything is sent, or asked of no server: what these show is the same on a cluster.
WITHOUT_A_SERVER = {
    "test_a_pattern_names_no_sink",
    "test_a_part_of_nothing_is_refused",
    "test_a_wait_longer_than_for_any_reply_is_refused",
    "test_an_argument_that_cannot_work_is_refused",
    "test_argument_that_cannot_work_is_named_and_nothing_is_sent",
    "test_arguments_are_checked_at_the_door",
    "test_bad_message_is_refused_as_a_send_refuses_it_and_spoils_the_stage",
    "test_body_that_cannot_be_sent_is_refused_alone_as_in_a_push",
    "test_fakeredis_publishes_too",
    "test_options_that_cannot_work_are_refused",
    "test_this_file_s_descriptor_count_works",
    "test_what_cannot_name_a_query_or_a_topic_is_refused",
    "test_what_is_no_client_is_refused",
}


def adopt(
    module: str,
    into: dict[str, Any],
    but: Container[str] = (),
    only: Container[str] | None = None,
) -> None:
    """Put the tests and fixtures of a module of tests/integration into a namespace.

    Not tests that show nothing of a cluster: those that have a server of their own, and those of
    `WITHOUT_A_SERVER`.
    """
    for name, value in vars(import_module(f"tests.integration.{module}")).items():
        is_fixture = type(value).__name__ == "FixtureFunctionDefinition"
        is_asked_for = name not in but and (only is None or name in only)
        if is_fixture or (is_asked_for and _is_adopted(name, value)):
            assert into.get(name, value) is value, f"{name} is there twice"
            into[name] = value


def _is_adopted(name: str, value: Any) -> bool:
    return (
        name.startswith("test_")
        and name not in WITHOUT_A_SERVER
        and "own_server" not in inspect.signature(value).parameters
    )
