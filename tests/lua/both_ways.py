"""Compares two texts of a script: on the same keys, a command does the same by both."""

from __future__ import annotations

from typing import Any

import redis

from rmq.kernel.transport.flow.steps import Command
from tests.lua.box import Box, changes


def _outcome(box: Box, command: Command[Any], text: str) -> Any:
    """The reply of a text or its error, and the state of the slot after it."""
    try:
        reply = box.eval(text, command.keys, command.args)
    except redis.ResponseError as error:
        reply = str(error).partition(" script:")[0]
    return reply, box.state()


def compare(box: Box, command: Command[Any], other: str) -> Any:
    """Run another text of a command and then its own, and return the reply of that.

    The keys of the command are what they were in between.
    """
    if command.write:
        box.redis.execute_command(*command.write)
    before = box.redis.pipeline()
    for key in command.keys:
        before.dump(key)
    contents = before.execute()

    expected = _outcome(box, command, other)
    again = box.redis.pipeline()
    for key, content in zip(command.keys, contents, strict=True):
        if content is None:
            again.delete(key)
        else:
            again.restore(key, 0, content, replace=True)
    again.execute()
    found = _outcome(box, command, command.script.text)

    assert found == expected, (found[0], expected[0], changes(expected[1], found[1]))
    return found[0]
