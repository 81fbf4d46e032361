"""The short form of a script for one message does what its long form does."""

from __future__ import annotations

import functools
import random
from typing import Any

import pytest
import redis

import rmq
from rmq.kernel.consumer import scripts as consumer_scripts
from rmq.kernel.transport.lua import script_loader
from tests.lua.both_ways import compare
from tests.lua.group import check, grouped, send as send_in_groups, send_alone
from tests.lua.single import COMMANDS, ack, send, take
from tests.sources import full_text

SHORT = "if known and "  # how a short form in the file of its script begins
LONG = "error('the long form')\n"
LONG_BEGINS = '\n--- @include "lib/check"\n'  # the long form behind such a short form


def is_apart(verb: str) -> bool:
    """Whether the short form of a script is a file of its own."""
    return (script_loader.directory() / "alone" / f"{verb}.lua").is_file()


@functools.cache
def without_short_form(verb: str) -> str:
    if is_apart(verb):
        return script_loader.full_text(
            verb, lambda part, text: "" if part == f"alone/{verb}" else text
        )
    text = script_loader.load(verb).text
    assert text.count(SHORT) >= 1
    return text.replace(SHORT, "if false and ", 1)


@functools.cache
def short_form_alone(verb: str) -> str:
    """The text of a script that fails where its long form begins."""

    def with_error(part: str, text: str) -> str:
        if part == f"alone/{verb}":
            return text + LONG
        if part == verb and not is_apart(verb):
            assert text.count(LONG_BEGINS) == 1
            return text.replace(LONG_BEGINS, f"\n{LONG}{LONG_BEGINS}")
        return text

    return script_loader.full_text(verb, with_error)


@pytest.mark.parametrize("build", COMMANDS.values(), ids=COMMANDS.keys())
def test_short_form_does_what_the_long_form_does(box, build):
    for _ in range(18):  # the 16th goes another way, and one take in five
        command = build(box)

        compare(box, command, without_short_form(command.script.name))


@pytest.mark.parametrize("build", COMMANDS.values(), ids=COMMANDS.keys())
def test_each_of_these_commands_takes_the_short_form(box, build):
    command = build(box)
    text = short_form_alone(command.script.name)

    box.redis.eval(text, len(command.keys), *command.keys, *command.args)


def test_no_function_is_created_before_a_short_form():
    for verb in sorted(path.stem for path in (script_loader.directory() / "alone").iterdir()):
        before, _, _ = full_text(verb).partition("repeat\n")

        assert "function" not in before, verb  # each one costs every call 0.1 us


@pytest.mark.parametrize("verb", ["send", "prepare", "ack"])
def test_control_a_command_of_a_new_session_takes_the_long_form(box, verb):
    command = {"send": send(), "prepare": take(1), "ack": ack}[verb](box)
    session, _ = command.args[1].split()
    assert box.redis.hdel(box.keys.slot, session) == 1

    with pytest.raises(redis.ResponseError, match="the long form"):
        box.redis.eval(short_form_alone(verb), len(command.keys), *command.keys, *command.args)


@pytest.mark.parametrize("verb", ["send", "prepare", "ack"])
def test_control_a_short_form_that_differs_is_noticed(box, verb):
    broken = without_short_form(verb).replace(
        "redis.call('HSET', slot,", "redis.call('HSET', slot, 'x', 1,"
    )
    command = {"send": send(), "prepare": take(1), "ack": ack}[verb](box)

    with pytest.raises(AssertionError):
        compare(box, command, broken)


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_short_forms_do_to_groups_what_the_long_ones_do(make_box, concurrency, seed):
    made = random.Random(seed)
    box = grouped(make_box, rmq.Groups(order=concurrency == 1, concurrency=concurrency))
    send_in_groups(box, *"xx" * 2)  # so that the slot has all counters
    box.ack(*box.take(10))
    leases: list[Any] = []
    for _ in range(150):
        verb = made.choice(["send", "send", "prepare", "ack"])
        if verb == "send":
            name, priority = made.choice(["a", "b", "cc", "d" * 31]), made.choice([100, 100, 300])
            command = send_alone(box, name, priority=priority, weight=made.choice([1, 1, 1, 4]))
        elif verb == "prepare":
            command = consumer_scripts.prepare(box.keys, box.session(), 1, 30_000, False)
        elif leases:
            command = box.ack_command([leases.pop(made.randrange(len(leases)))], box.session())
        else:
            continue

        reply = compare(box, command, without_short_form(verb))

        check(box)
        if verb == "prepare":
            leases += box.leases(command.parse(reply))


def _held_one(box):
    send_in_groups(box, "a", "a")
    return send_alone(box, "a")


def _ack_before_another(box):
    send_in_groups(box, "a", "a")
    return box.ack_command([box.take_one()], box.session())


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize(
    "build", [lambda box: send_alone(box, "a"), _held_one, _ack_before_another]
)
def test_messages_of_groups_take_the_short_form(make_box, concurrency, build):
    box = grouped(make_box, rmq.Groups(order=concurrency == 1, concurrency=concurrency))
    command = build(box)
    text = short_form_alone(command.script.name)

    box.redis.eval(text, len(command.keys), *command.keys, *command.args)

    check(box)
