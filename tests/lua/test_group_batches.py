"""Batches with many groups do the same by the text of each entry as with a table for each group."""

from __future__ import annotations

import functools
import random

import pytest

import rmq
from rmq.kernel.transport.lua.script_loader import full_text
from tests.lua.both_ways import compare
from tests.lua.group import check, drained, grouped, nothing_left, parts_of
from tests.lua.test_send_uniform import uniform

SETTINGS = [rmq.Groups(), rmq.Groups(order=False, concurrency=3), rmq.Groups(on_dead="hold")]
# By script, a condition under which all messages take the general way.
GENERAL = {
    "send": ("lib/groups/enter_plain_groups", "if last.vtime >= GROUPS_RESTART then"),
    "ack": ("lib/groups/leave_plain_groups", "if 2 * #fields < #names then"),
}

BROKEN = {
    "send": ("lane = free_lane(groups)\n", "lane = free_lane(groups) + 1\n"),
    "ack": ("'ZADD', store, 'XX',", "'ZMSCORE', store,"),
}


@functools.cache
def generally(verb: str) -> str:
    """The text of a script that takes the general way for all groups."""
    part, condition = GENERAL[verb]

    def changed(name: str, text: str) -> str:
        if name != part:
            return text
        assert text.count(condition) == 1
        return text.replace(condition, "if true then")

    return full_text(verb, changed)


def names_apart(made: random.Random) -> list[str]:
    """Names of groups, of which no two neighbors are equal."""
    names = [made.choice("abcdefghijkl") for _ in range(made.choice([2, 9, 40]))]
    return [name for at, name in enumerate(names) if at == 0 or name != names[at - 1]]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("seed", range(2))
def test_batches_of_plain_groups_do_the_same_both_ways(make_box, setting, seed):
    made = random.Random(seed)
    box = grouped(make_box, setting)
    for _ in range(10):
        parts = [parts_of(name) for name in names_apart(made)]
        command = uniform(box, box.session(), [rest for _, rest in parts], head=parts[0][0])[1]
        compare(box, command, generally("send"))
        check(box)
        leases = box.take(made.choice([1, 5, 30]))
        if leases:
            compare(box, box.ack_command(leases, box.session()), generally("ack"))
        check(box)

    drained(box, 20)
    nothing_left(box)


@pytest.mark.parametrize("setting", SETTINGS)
def test_batches_leave_other_groups_to_the_general_way(make_box, setting):
    made = random.Random(7)
    box = grouped(make_box, setting)
    for _ in range(15):
        priority = made.choice([100, 100, 300])
        parts = [
            parts_of(
                name, priority=priority,
                weight=made.choice([1, 1, 1, 4]), share=made.choice([None, None, "tenant"]),
            )
            for name in names_apart(made)
        ]  # fmt: skip
        if made.random() < 0.5:  # plain messages for groups that may not be plain
            parts = [parts_of(name, priority=priority) for name in names_apart(made)]
        box.run(uniform(box, box.session(), [rest for _, rest in parts], head=parts[0][0])[1])
        check(box)
        leases = box.take(made.choice([1, 5, 30]))
        box.ack(*leases)
        check(box)

    drained(box, 20)
    nothing_left(box)


def test_a_batch_keeps_the_order_of_a_group_that_is_not_plain(make_box):
    box = grouped(make_box)
    for name, weight in [("a", 4), ("a", 4), ("b", 1)]:
        head, rest = parts_of(name, weight=weight)
        box.run(uniform(box, box.session(), [rest], head=head)[1])
    bodies = [(name, b"%d" % n) for n, name in enumerate("abacab")]
    parts = [parts_of(name, body=body) for name, body in bodies]
    sent, command = uniform(box, box.session(), [rest for _, rest in parts], head=parts[0][0])
    box.run(command)

    check(box)
    ids = [id for id in drained(box, 3) if id in sent]
    for name in "abc":
        mine = [id for (group, _), id in zip(bodies, sent, strict=True) if group == name]
        assert [id for id in ids if id in mine] == mine


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_front_that_is_filled_again_keeps_the_order(make_box, setting):
    box = grouped(make_box, setting)
    names = "ab" * 25
    head = parts_of("a")[0]
    sent, command = uniform(box, box.session(), [parts_of(name)[1] for name in names], head=head)
    box.run(command)

    ids = []
    while leases := box.take(2):
        ids += [lease.id for lease in leases]
        compare(box, box.ack_command(leases, box.session()), generally("ack"))
        check(box)

    for mine in sent[::2], sent[1::2]:
        assert [id for id in ids if id in mine] == mine
    nothing_left(box)


@pytest.mark.parametrize("verb", GENERAL)
def test_control_a_batch_that_does_something_else_is_noticed(make_box, verb):
    box = grouped(make_box)
    parts = [parts_of(name) for name in "abcabc"]
    command = uniform(box, box.session(), [rest for _, rest in parts], head=parts[0][0])[1]
    if verb == "ack":
        box.run(command)
        command = box.ack_command(box.take(3), box.session())
    broken = generally(verb).replace(*BROKEN[verb])
    assert broken != generally(verb)

    with pytest.raises(AssertionError):
        compare(box, command, broken)
