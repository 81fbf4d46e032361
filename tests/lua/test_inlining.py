"""A script does the same with its inline functions in place and with functions that it calls."""

from __future__ import annotations

from typing import Any

import pytest

from rmq.kernel.transport.lua import script_loader
from tests.lua.both_ways import compare
from tests.lua.box import case
from tests.lua.calls import CALLS, REACHING, Call
from tests.lua.single import COMMANDS
from tests.sources import called, full_text, inline_names


def plain(verb: str) -> str:
    """The text of a script that calls its inline functions."""
    return script_loader.bound(verb, script_loader.pruned(called(script_loader.composed(verb))))


@pytest.mark.parametrize("verb", script_loader.names())
def test_script_does_the_same_with_inline_functions_in_place_or_called(anew, verb):
    calls: list[tuple[Any, Call]] = [(verb, CALLS[verb])]
    calls += [(place, call) for place, call in REACHING.items() if place[0] == verb]
    for place, call in calls:
        with case(place):
            furnished = anew()

            compare(furnished.box, call(furnished), plain(verb))


@pytest.mark.parametrize("build", COMMANDS.values(), ids=COMMANDS.keys())
def test_script_of_one_message_does_the_same_either_way(box, build):
    command = build(box)

    compare(box, command, plain(command.script.name))


def test_every_inline_function_is_in_place_in_every_script():
    for verb in script_loader.names():
        with case(verb):
            composed = script_loader.composed(verb)
            loaded = full_text(verb)

            for name in inline_names(composed):
                assert f"function {name}(" not in loaded
