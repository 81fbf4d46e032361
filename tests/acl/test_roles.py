"""Every verb of a role works with its rules, and fails without any one of their commands.

A step is played once for all tests that ask what came of it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import rmq
from rmq.kernel.topic import clock as command_clock
from rmq.kernel.transport import acl
from tests.acl.calls import noted, ran
from tests.acl.registry import ON_TOPICS
from tests.acl.scene import DONE_WITHOUT, Scene
from tests.acl.steps import STEPS
from tests.servers import Server

ALL_STEPS = [(role, name) for role in STEPS for name in STEPS[role]]


# Commands whose lack stops no verb, and what it costs.
NOT_FATAL = {
    "client|setinfo": "redis-py names itself to the server, and ignores an error",
    "publish": "waiting consumers notice messages up to a second late; rmq ping tells",
    "pubsub|numsub": "nothing is handed over; consumers ask for messages instead",
}


def commands_of_roles() -> list[Any]:
    """Return each command of each role; all but one role of each command are left to CI."""
    pairs = [
        (role, name)
        for role in acl.ROLES
        for name in acl.acl_rules(role).commands
        if name not in acl.CLUSTER | acl.SHARDED  # test_cluster.py, tests/cluster have those
    ]
    first: dict[str, acl.Role] = {}
    for role, name in pairs:
        is_shorter = name in first and len(STEPS[role]) < len(STEPS[first[name]])
        if name not in first or (name in NOT_FATAL and is_shorter):  # those are tried in all steps
            first[name] = role
    return [
        pytest.param(role, name, marks=[] if first[name] == role else [pytest.mark.slow])
        for role, name in pairs
    ]


_count = itertools.count()


class Played(NamedTuple):
    """The outcome of a step.

    Attributes:
        error: that it raised.
        commands: that the server ran meanwhile; setting the step up may have run them, too.
        scripts: that clients of the user called.
        refused: what the user was refused, whether it raised or not.
    """

    error: BaseException | None
    commands: set[str]
    scripts: set[str]
    refused: set[str]


@pytest.fixture(scope="module")
def play(each_server: Server) -> Callable[[acl.Role, str], Played]:
    """Plays a step with the rules of a role; once, for all tests that ask."""
    played: dict[tuple[acl.Role, str], Played] = {}

    def of(role: acl.Role, step: str) -> Played:
        if (role, step) not in played:
            error, called = None, set[str]()
            scene = Scene(each_server, f"c{next(_count)}-{os.getpid()}")
            try:
                scene.grant(role)
                scene.raw.config_resetstat()
                with noted(called):
                    STEPS[role][step](scene)
            except (Exception, pytest.skip.Exception) as raised:
                error = raised
            finally:
                ran_then, refused = ran(scene.raw), scene.refused()
                command_clock.set_clock(None)
                scene.close()
            played[role, step] = Played(error, ran_then, called, refused)
        return played[role, step]

    return of


@pytest.mark.parametrize(("role", "step"), ALL_STEPS)
def test_a_role_may_do_what_it_is_for(
    play: Callable[[acl.Role, str], Played], role: acl.Role, step: str
) -> None:
    played = play(role, step)
    if played.error is not None:
        raise played.error

    assert played.refused <= DONE_WITHOUT.get(step, set())


@pytest.mark.slow
@pytest.mark.parametrize(("role", "step"), ALL_STEPS)
def test_a_role_may_do_it_with_an_async_client(
    server: Server, name: str, role: acl.Role, step: str
) -> None:
    scene = Scene(server, name)
    try:
        scene.kind = "async"
        scene.grant(role)

        STEPS[role][step](scene)

        assert scene.refused() <= DONE_WITHOUT.get(step, set())
    finally:
        command_clock.set_clock(None)
        scene.close()


@pytest.mark.parametrize("role", ON_TOPICS)
def test_a_role_may_open_a_topic_with_an_async_client(
    server: Server, name: str, role: acl.Role
) -> None:
    scene = Scene(server, name)
    try:
        scene.kind = "async"
        scene.grant(role)

        assert scene.topic().open(create=False) is not None
    finally:
        scene.close()


@pytest.mark.parametrize(("role", "command"), commands_of_roles())
def test_each_command_of_the_rules_is_needed(
    each_server: Server,
    play: Callable[[acl.Role, str], Played],
    scene: Scene,
    role: acl.Role,
    command: str,
) -> None:
    if command not in scene.rules(role).commands:
        pytest.skip(f"this server does not know {command}")
    names = {command, command.split("|")[0]}  # Redis 6.2 counts subcommands as one
    callers = (step for step in STEPS[role] if names & play(role, step).commands)

    refused, is_tried = None, False
    for step in callers:
        is_tried = True
        tried = Scene(each_server, f"n{next(_count)}-{os.getpid()}")
        tried.grant(role, without=command)
        try:
            STEPS[role][step](tried)
        except rmq.AccessDenied as error:
            refused = error
            break
        finally:
            command_clock.set_clock(None)
            tried.close()

    assert is_tried
    if command in NOT_FATAL:
        assert refused is None, NOT_FATAL[command]
    else:
        assert refused is not None
        assert f"+{command}" in str(refused)


@pytest.mark.parametrize("role", acl.ROLES)
def test_the_scripts_of_a_role_are_those_that_its_clients_call(
    play: Callable[[acl.Role, str], Played], role: acl.Role
) -> None:
    called = set[str]().union(*(play(role, step).scripts for step in STEPS[role]))

    if role == "viewer":  # it tries to, and reads on where it may not
        called.remove("tidy")
    assert called == acl.SCRIPTS[role]
