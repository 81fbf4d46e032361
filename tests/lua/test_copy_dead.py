"""Copies of dead letters (lib/follow_ups/copy_dead), by each script that makes dead letters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from rmq.features.dead_letters import scripts as dead_letters_scripts
from rmq.features.spark import scripts as queries_scripts
from rmq.kernel.consumer import scripts as consumer_scripts
from rmq.kernel.core.dead_to import DeadTo
from rmq.kernel.core.ids import member_of
from rmq.kernel.follow_ups import scripts
from tests.lua.box import Box, case
from tests.lua.following import ack_then, by_target, follow_up
from tests.lua.query import ME, RUN, read, take
from tests.lua.test_slot import command

TARGET = "graves:0"
Death = Callable[[Box, list[bytes]], Any]


def query_fail(box: Box, ids: list[bytes], retry: bool) -> Any:
    take(box)
    read(box)
    failing = [
        queries_scripts.Failing(n, member_of(id), b"why", None) for n, id in enumerate(ids, 1)
    ]
    return queries_scripts.query_fail(box.handle, box.keys, RUN, failing, retry)


def query_reject(box: Box, ids: list[bytes]) -> Any:
    take(box)
    return queries_scripts.query_reject(box.handle, box.keys, ME, len(ids), b"why", 10)


def rollback(box: Box, ids: list[bytes]) -> Any:
    box.take(len(ids))
    box.clock.advance(60)
    return consumer_scripts.rollback_expired_leases(box.handle, box.keys, 100)


def take_all(box: Box) -> Any:
    return consumer_scripts.prepare(box.keys, box.session(), 10, 30_000, False, False, None)


def expired(box: Box, build: Callable[[], Any]) -> Any:
    box.clock.advance(60)
    return build()


def query_take(box: Box, ids: list[bytes]) -> Any:
    box.run(queries_scripts.query_renew(box.keys, ME, 0, 0, True, b""))
    return expired(box, lambda: queries_scripts.query_take(box.keys, ME, 0, 10, 0))


# By the name of a script: the reason, and the command that lets messages die.
DEATHS: dict[str, tuple[str, Death]] = {
    "nack": ("f", lambda box, ids: box.nack_command(box.take(len(ids)), box.session())),
    "reject": ("r", lambda box, ids: box.reject_command(box.take(len(ids)), box.session())),
    "reject u": (
        "u", lambda box, ids: box.reject_command(box.take(len(ids)), box.session(), "u"),
    ),
    "rollback_expired_leases": ("l", rollback),
    "drop_expired": (
        "x",
        lambda box, ids: expired(
            box, lambda: dead_letters_scripts.drop_expired(box.handle, box.keys, 0, 100)
        ),
    ),
    "prepare": ("x", lambda box, ids: expired(box, lambda: take_all(box))),
    "query_take": ("x", query_take),
    "query_reject": ("r", query_reject),
    "query_fail": ("f", lambda box, ids: query_fail(box, ids, retry=True)),
    "query_fail r": ("r", lambda box, ids: query_fail(box, ids, retry=False)),
}  # fmt: skip


def dying(box: Box, death: str, count: int = 2) -> tuple[list[bytes], Any]:
    """Send messages; return their ids, and a command that lets them die."""
    ids = box.send(count, expires=30_000 if DEATHS[death][0] == "x" else None, body=b"the body")
    return ids, DEATHS[death][1](box, ids)


@pytest.mark.parametrize("death", DEATHS)
def test_each_death_stores_a_pending_entry_with_the_record(make_box: Any, death: str) -> None:
    box = make_box(max_retries=0, dead_to=DeadTo("graves", 4))
    ids, command = dying(box, death)
    records = box.state()["records"]

    box.run(command)

    state, first, reason = box.state(), box.clock.now_ms * 1000, DEATHS[death][0].encode()
    assert set(state["dead"]) == set(ids)
    stem = len(TARGET) + 1 + 16  # before the mark of a copy
    assert sorted(entry[stem:] for entry in state["pending"]) == sorted(
        b"!" + reason + member_of(id) + records[id] for id in ids
    )
    assert sorted(entry[:stem] for entry in state["pending"]) == [
        b"%b:%016d" % (TARGET.encode(), first + n) for n in range(2)
    ]
    assert state["targets"] == {TARGET.encode(): box.clock.now_ms}, "any process may send at once"
    assert state["slot"]["follow_ups"] == str(first + 1)
    assert state["records"] == records


def test_without_the_setting_nothing_is_stored(make_box: Any) -> None:
    for death in DEATHS:
        with case(death):
            box = make_box(max_retries=0)
            box.redis.flushall()
            box = make_box(max_retries=0)
            ids, command = dying(box, death)

            box.run(command)

            state = box.state()
            assert set(state["dead"]) == set(ids)
            assert not {"pending", "targets"} & set(state)


@pytest.mark.parametrize("place", ["pending", "targets"])
@pytest.mark.parametrize("death", DEATHS)
def test_a_wrong_type_is_an_error_and_no_key_changes(make_box: Any, death: str, place: str) -> None:
    box = make_box(max_retries=0, dead_to=DeadTo("graves", 4))
    _, command = dying(box, death)
    box.redis.set(getattr(box.keys, place), b"another's")
    before = box.state()

    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        box.run(command)

    assert box.state() == before


def test_a_copy_of_the_call_stores_no_second_copy_of_the_dead_letter(make_box: Any) -> None:
    box = make_box(dead_to=DeadTo("graves", 1))
    box.send(1)
    lease, session = box.take_one(), box.session()

    box.twice(lambda: box.reject_command([lease], session))

    assert len(box.state()["pending"]) == 1


def test_numbers_of_copies_follow_those_of_follow_ups(make_box: Any) -> None:
    box = make_box(dead_to=DeadTo("graves", 1))
    box.send(1)

    command = box.reject_command(
        [box.take_one()], box.session(), follow_ups=by_target([follow_up(box)]), read=lambda it: it
    )
    reply = box.run(command)

    entries = sorted(box.state()["pending"], key=lambda entry: entry.partition(b":")[2])
    numbers = [int(entry.split(b":")[2][:16]) for entry in entries]
    assert len(set(numbers)) == 2
    assert reply.number in numbers


def test_more_records_than_a_page_are_copied(make_box: Any) -> None:
    box = make_box(dead_to=DeadTo("graves", 1), max_body=1024 * 1024)  # 4 records at once
    box.send(10)

    box.reject(*box.take(10))

    assert len(box.state()["pending"]) == 10


def test_a_message_without_a_record_is_not_copied(make_box: Any) -> None:
    box = make_box(dead_to=DeadTo("graves", 1))
    first, second = box.send(2)
    leases = box.take(2)
    box.break_record(first, None)

    assert box.reject(*leases) == "dd"

    (entry,) = box.state()["pending"]
    assert member_of(second) in entry


def test_a_refused_follow_up_is_a_dead_letter_without_a_copy(make_box: Any) -> None:
    box = make_box(dead_to=DeadTo("graves", 1))
    box.send(1)
    reply = ack_then(box, box.take(1), follow_up(box))
    refused = scripts.Refused(reply.number, member_of(box.ids()[0]), *box.part(), b"why")

    box.run(scripts.pending_settle(box.keys, "other:3", 0, reply.claim, 10, refused=refused))

    state = box.state()
    assert len(state["dead"]) == 1
    assert "pending" not in state


def test_the_setting_is_removed_from_a_slot(make_box: Any) -> None:
    box = make_box(dead_to=DeadTo("graves", 1))
    assert box.state()["slot"]["dead_to"] == "graves:0"

    box.run(command(box, box.created, 1, dead_to=None))

    assert "dead_to" not in box.state()["slot"]


@pytest.mark.parametrize("death", DEATHS)
def test_copies_are_stored_while_redis_is_at_maxmemory(tight: Any, death: str) -> None:
    settings = {"max_retries": 0, "dead_to": DeadTo("graves", 1)}
    box = Box(
        tight.redis, f"{tight.handle.name}-{death.replace(' ', '-')}", tight.clock, **settings
    )
    ids, dies = dying(box, death)
    tight.redis.script_load(dies.script.text)
    tight.redis.config_set("maxmemory-policy", "noeviction")
    tight.redis.config_set("maxmemory", 1)
    try:
        box.run(dies)
    finally:
        tight.redis.config_set("maxmemory", 0)

    assert set(box.state()["dead"]) == set(ids)
    assert len(box.state()["pending"]) == len(ids)
