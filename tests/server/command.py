"""`rmq` in a fork: what the server imports is there already.

The variable RMQ_TEST_CONSTANTS gives constants of RMQ other values in that process: a JSON object
of `module:name` or `module:Class.name`. A server of a test then does in a second what it does in a
minute elsewhere.
"""

from __future__ import annotations

import importlib
import json
import os
from operator import attrgetter

import rmq.cli
import rmq.server.console
from rmq.cli import server, worker  # noqa: F401
from rmq.server import application, listener  # noqa: F401
from tests.server.running import CONSTANTS


def main(*words: str) -> None:
    for place, value in json.loads(os.environ.pop(CONSTANTS, "{}")).items():
        module, _, path = place.partition(":")
        owner, _, name = path.rpartition(".")
        found = importlib.import_module(module)
        found = attrgetter(owner)(found) if owner else found
        getattr(found, name)  # a name that is gone would change nothing
        setattr(found, name, value)
    rmq.cli.main()  # it reads sys.argv
