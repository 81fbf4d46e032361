"""Every verb of a role works with its rules, and fails without any one of their commands."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

import rmq
from rmq.protocol import acl, commands
from tests.acl.calls import noted, ran
from tests.acl.scene import Scene
from tests.acl.steps import STEPS
from tests.servers import Server

ALL_STEPS = [(role, name) for role in STEPS for name in STEPS[role]]
ALL_COMMANDS = [
    (role, name)
    for role in acl.ROLES
    for name in acl.acl_rules(role).commands
    if name not in acl.CLUSTER | acl.SHARDED  # tests/acl/test_cluster.py, tests/cluster have those
]
# Commands whose lack stops no verb, and what it costs.
NOT_FATAL = {
    "client|setinfo": "redis-py names itself to the server, and ignores an error",
    "publish": "waiting consumers notice messages up to a second late; rmq ping tells",
    "pubsub|numsub": "nothing is handed over; consumers ask for messages instead",
}
_count = itertools.count()


@pytest.mark.parametrize("kind", ["sync", "async", "functions"])
@pytest.mark.parametrize(("role", "step"), ALL_STEPS)
def test_a_role_may_do_what_it_is_for(scene: Scene, role: acl.Role, step: str, kind: str) -> None:
    if kind == "functions":
        scene.call_functions()
    else:
        scene.kind = kind
    scene.grant(role)

    STEPS[role][step](scene)


@pytest.fixture(scope="module")
def callers(each_server: Server) -> Callable[[acl.Role, str], list[str]]:
    """Which steps of a role make the server run a command; setting them up may run it, too."""
    seen: dict[str, dict[str, set[str]]] = {}

    def of(role: acl.Role, command: str) -> list[str]:
        if role not in seen:
            seen[role] = {}
            for name, step in STEPS[role].items():
                scene = Scene(each_server, f"c{next(_count)}")
                try:
                    scene.grant(role)
                    scene.raw.config_resetstat()
                    step(scene)
                    seen[role][name] = ran(scene.raw)
                finally:
                    commands.set_clock(None)
                    scene.close()
        names = {command, command.split("|")[0]}  # Redis 6.2 counts subcommands as one
        return [step for step, called in seen[role].items() if names & called]

    return of


@pytest.mark.parametrize(("role", "command"), ALL_COMMANDS)
def test_each_command_of_the_rules_is_needed(
    each_server: Server,
    callers: Callable[[acl.Role, str], list[str]],
    scene: Scene,
    role: acl.Role,
    command: str,
) -> None:
    if command not in scene.rules(role).commands:
        pytest.skip(f"this server does not know {command}")
    steps = callers(role, command)
    assert steps

    refused = None
    for step in steps:
        tried = Scene(each_server, f"n{next(_count)}")
        tried.grant(role, without=command)
        try:
            STEPS[role][step](tried)
        except rmq.AccessDenied as error:
            refused = error
            break
        finally:
            commands.set_clock(None)
            tried.close()

    if command in NOT_FATAL:
        assert refused is None, NOT_FATAL[command]
    else:
        assert refused is not None
        assert f"+{command}" in str(refused)


@pytest.mark.parametrize("role", acl.ROLES)
def test_the_scripts_of_a_role_are_those_that_its_clients_call(
    each_server: Server, role: acl.Role
) -> None:
    called: set[str] = set()

    with noted(called):
        for step in STEPS[role].values():
            scene = Scene(each_server, f"s{next(_count)}")
            try:
                scene.grant(role)
                step(scene)
            finally:
                commands.set_clock(None)
                scene.close()

    if role == "viewer":  # it tries to, and reads on where it may not
        called.remove("tidy")
    assert called == acl.SCRIPTS[role]
