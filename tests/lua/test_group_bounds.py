"""Groups where something seldom happens: ends of counters, other types, calls that come twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

import rmq
from rmq.features.audit import scripts as audit_scripts
from rmq.features.dead_letters import scripts as dead_scripts
from rmq.features.messages import scripts as messages_scripts
from rmq.features.spark import scripts as queries_scripts
from rmq.features.topic_admin import scripts as topic_admin_scripts
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.producer import scripts as producer_scripts
from rmq.kernel.topic import scripts as topic_scripts
from rmq.kernel.transport import errors
from rmq.kernel.transport.lua import script_loader
from tests.conftest import any_binary
from tests.lua import query
from tests.lua.box import Box, Lease
from tests.lua.group import (
    LANE_PLACES,
    ahead,
    check,
    drained,
    entry,
    grouped,
    held,
    nothing_left,
    one,
    out,
    parts_of,
    send,
    send_alone,
)
from tests.property.mutants import loader
from tests.servers import Server

NEAR = 2**18  # lanes that are tried first

# --- what seldom happens


def test_virtual_time_begins_anew_where_nothing_waits(make_box):
    box = grouped(make_box)
    send(box, "a", "a", share="s")
    lease = box.take_one()
    box.redis.hset(box.keys.slot, "vtime", 2**30 + 1)

    send(box, "b")

    state = check(box)
    assert state["slot"]["vtime"] == "0"
    assert box.ack(lease) == "1"
    assert entry(box).finish < 64 * 4
    assert len(drained(box)) == 2
    nothing_left(box)


@pytest.mark.parametrize("priority", [17, 1_048_575])
@pytest.mark.parametrize("vtime", [2**30 + 1, 2**33, 2**50])
def test_virtual_time_beyond_what_a_score_can_say_loses_nothing(make_box, priority, vtime):
    box = grouped(make_box)
    given = send(box, *"aabb", priority=priority)
    box.redis.hset(box.keys.slot, "vtime", vtime)
    given += send(box, "c", "a", priority=priority)

    got = drained(box)

    assert sorted(got) == sorted(given)
    assert got.index(given[0]) < got.index(given[1]) < got.index(given[5])
    nothing_left(box)


def test_numbers_of_lanes_are_used_again_and_those_in_use_are_passed_over(make_box):
    box = grouped(make_box)
    given = send(box, *"aabb")  # lanes 1 and 2
    box.redis.hset(box.keys.slot, "lane", NEAR - 2)

    for name in "cdef":
        given += send(box, name, name)

    check(box)
    lanes = {name: entry(box, name).lanes[0] for name in "abcdef"}
    assert (lanes["c"], lanes["d"]) == (NEAR - 1, 0)
    assert lanes["e"] > 2  # lane 1 is in use, and the next try is far from it
    assert len(set(lanes.values())) == 6
    assert sorted(drained(box)) == sorted(given)
    nothing_left(box)


def _with_place(box: Box, group: str, place: int) -> None:
    """Let the next message of a group have this place in its lane."""
    text = box.redis.hget(box.keys.slot, "/" + group)
    box.redis.hset(box.keys.slot, "/" + group, text[:32] + place.to_bytes(4, "big") + text[36:])


@pytest.mark.parametrize("alone", [True, False])
def test_lane_whose_places_are_used_up_is_followed_by_another(make_box, alone):
    box = grouped(make_box)
    given = send(box, "a", "a")
    _with_place(box, "a", LANE_PLACES - 2)

    for _ in range(5):
        if alone:
            command = send_alone(box, "a")
            box.run(command)
            given.append(box.keys.id_of(command.args[7]))
        else:
            given += send(box, "a")

    check(box)
    assert len(entry(box).lanes) == 2
    assert drained(box) == given
    nothing_left(box)


def test_head_that_is_held_again_goes_before_all_of_two_lanes(make_box):
    box = grouped(make_box)
    given = send(box, "a", "a")
    _with_place(box, "a", LANE_PLACES - 1)
    given += send(box, "a")
    high = one(box, priority=500)

    check(box)
    assert drained(box) == [high, *given]
    nothing_left(box)


def test_older_lanes_go_first_in_their_priority_only(make_box):
    box = grouped(make_box)
    one(box)
    lease, given = box.take_one(), dict[int, list[bytes]]()
    for round in range(4):
        for priority in (50, 300, 100):
            given.setdefault(priority, []).extend(send(box, *"aa", priority=priority))
        _with_place(box, "a", LANE_PLACES - 1 - round % 2)
        given[100] += send(box, *"aa")

    assert len(entry(box).lanes) > 3
    wanted = [*given[300], *given[100], *given[50]]
    assert [ahead(box, id) for id in wanted] == list(range(len(wanted)))
    box.ack(lease)
    assert drained(box) == wanted
    nothing_left(box)


# --- refusals


def test_send_is_refused_with_what_to_do_where_all_lanes_are_used(make_box, monkeypatch):
    few = [("send", "% 262144", "% 3"), ("send", "% 2095104", "% 3")]
    monkeypatch.setattr(script_loader, "load", loader(few))
    box = grouped(make_box)
    send(box, *"aabbcc")
    send(box, "d")
    before = box.state()

    ids, parts = box.ids(2), [*parts_of("d"), *parts_of("d")]
    several = producer_scripts.send(box.handle, box.keys, box.session(), ids, parts, {})
    for command in (send_alone(box, "d"), several):
        with pytest.raises(redis.ResponseError, match="RMQLANES") as caught:
            box.run(command)

    assert box.changed(before) == {}
    error = errors.translate(caught.value, "send", [])
    assert isinstance(error, rmq.QueueFull)
    assert "more slots" in str(error)


def _queue_of_another_type(box: Box) -> None:
    box.redis.delete(box.keys.store)
    box.redis.set(box.keys.store, "text")


@pytest.mark.parametrize("verb", ["ack", "reject", "nack", "release"])
@pytest.mark.parametrize("count", [1, 2])
def test_store_queue_of_another_type_stops_a_verb_before_its_first_write(make_box, verb, count):
    box = grouped(make_box, max_retries=0)
    send(box, *"aabb")
    leases = box.take(count)
    _queue_of_another_type(box)
    before = box.state()

    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        getattr(box, verb)(*leases)

    assert box.changed(before, replay=True) == {}


@pytest.mark.parametrize(
    "build",
    [
        lambda box: queries_scripts.query_settle(box.handle, box.keys, query.ME, 0, 9, 9),
        lambda box: queries_scripts.query_reject(box.handle, box.keys, query.ME, 9, b"", 9),
    ],
)
def test_store_queue_of_another_type_stops_a_query_before_its_first_write(make_box, build):
    box = grouped(make_box)
    send(box, *"aabb")
    query.take(box)
    _queue_of_another_type(box)
    before = box.state()

    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        box.run(build(box))

    assert box.changed(before) == {}


# --- sent twice


def _leases(box: Box) -> list[Lease]:
    send(box, *"aaabbb")
    return box.take(2)


def _settling(verb: str, **how: Any) -> Callable[[Box], Callable[[Any], Any]]:
    def make(box: Box) -> Callable[[Any], Any]:
        leases = _leases(box)
        return lambda session: getattr(box, f"{verb}_command")(leases, session, **how)

    return make


def _one_of(verb: Callable[..., Any]) -> Callable[[Box], Callable[[Any], Any]]:
    def make(box: Box) -> Callable[[Any], Any]:
        given = send(box, *"aaabbb")
        return lambda session: verb(box, session, given)

    return make


def _sends(box: Box) -> Callable[[Any], Any]:
    send(box, "a")
    ids, parts = box.ids(3), [part for name in "aab" for part in parts_of(name)]
    return lambda session: producer_scripts.send(box.handle, box.keys, session, ids, parts, {})


def _sends_one(box: Box) -> Callable[[Any], Any]:
    send(box, "a")
    (head, rest), ids = parts_of("a"), box.ids()
    return lambda session: producer_scripts.send_uniform(
        box.handle, box.keys, session, head, ids, [rest]
    )


def _redrives(box: Box) -> Callable[[Any], Any]:
    leases = _leases(box)
    box.reject(*leases)
    ids = [lease.id for lease in leases]
    return lambda session: dead_scripts.redrive(box.handle, box.keys, session, ids)


TWICE: dict[str, Callable[[Box], Callable[[Any], Any]]] = {
    "send": _sends,
    "send one": _sends_one,
    "ack": _settling("ack"),
    "nack": _settling("nack"),
    "nack with a delay": _settling("nack", wait_ms=5000),
    "reject": _settling("reject"),
    "release": _settling("release"),
    "release with a delay": _settling("release", wait_ms=5000),
    "redrive": _redrives,
    "cancel": _one_of(
        lambda box, session, ids: messages_scripts.cancel(box.handle, box.keys, session, ids[0])
    ),
    "cancel of a held one": _one_of(
        lambda box, session, ids: messages_scripts.cancel(box.handle, box.keys, session, ids[1])
    ),
    "reschedule": _one_of(
        lambda box, session, ids: messages_scripts.reschedule(
            box.handle, box.keys, session, ids[0], 5000
        )
    ),
    "set_priority": _one_of(
        lambda box, session, ids: messages_scripts.set_priority(box.keys, session, ids[1], 500)
    ),
    "purge": _one_of(
        lambda box, session, ids: topic_scripts.purge(
            box.handle, box.keys, session, "store", limit=3
        )
    ),
}


@pytest.mark.parametrize("verb", TWICE)
def test_what_is_sent_twice_is_done_once(make_box, verb):
    box = grouped(make_box, rmq.Groups(order=False, concurrency=2), max_retries=1)
    build = TWICE[verb](box)
    session, before = box.session(), check(box)

    box.twice(lambda: build(session))

    check(box)
    assert box.changed(before), "the call changed nothing: the test has shown nothing"


# --- memory


def test_settling_frees_memory_first_where_there_is_none(tight_groups):
    box = tight_groups
    send(box, *"aabbccdd")
    leases = box.take(4)
    box.redis.config_set("maxmemory", 1)

    assert box.ack(leases[0]) == "1"
    assert box.ack(leases[1], leases[2]) == "11"
    assert box.reject(leases[3]) == "d"

    box.redis.config_set("maxmemory", 0)
    check(box)
    assert len(out(box)) == 4


@pytest.fixture
def tight_groups(name, clock):
    server = Server(any_binary())
    client = server.raw(protocol=2)
    yield Box(client, name, clock, groups=rmq.Groups())
    client.close()
    server.stop()


# --- where is a held message?


def _with_held(make_box: Any, **given: Any) -> tuple[Box, bytes, bytes]:
    box = grouped(make_box, **given)
    return box, *send(box, "a", "a")


def _get(make_box: Any) -> None:
    box, head, id = _with_held(make_box)
    found = box.run(topic_scripts.get(box.keys, id))
    assert found is not None
    assert (found.queue, found.score < 0) == ("store", True)
    assert head


def _locate(make_box: Any) -> None:
    box, head, id = _with_held(make_box)
    assert box.run(topic_scripts.locate(box.keys, [head, id])).codes == "ss"


def _audit_scan(make_box: Any) -> None:
    box = grouped(make_box)
    send(box, "a", audited="0123456789.1")
    send(box, "a", audited="0123456789.2")
    living = box.run(audit_scripts.audit_scan(box.keys, b"0", 100)).living
    assert sorted(living) == [b"s0123456789.1", b"s0123456789.2"]


def _resize_scan(make_box: Any) -> None:
    box, *_ = _with_held(make_box)
    box.redis.hset(box.keys.slot, "upto", 2)
    stamp = box.redis.hget(box.keys.slot, "created")
    keys = SlotKeys(box.handle.prefix, box.handle.name, box.keys.index, stamp)
    assert box.run(topic_admin_scripts.resize_scan(keys, b"0", 100))[1] == 2


def _cancel(make_box: Any) -> None:
    box, _, id = _with_held(make_box)
    verb = messages_scripts.cancel(box.handle, box.keys, box.session(), id)
    assert box.run(verb) == "cancelled"


def _reschedule(make_box: Any) -> None:
    box, _, id = _with_held(make_box)
    verb = messages_scripts.reschedule(box.handle, box.keys, box.session(), id, 5000)
    assert box.run(verb)[0] == "rescheduled"


def _set_priority(make_box: Any) -> None:
    box, _, id = _with_held(make_box)
    assert box.run(messages_scripts.set_priority(box.keys, box.session(), id, 50)) == "changed"


def _merge(make_box: Any) -> None:
    """Without a group, of which a thousand are out, one may be held that others merge into."""
    box = grouped(make_box)
    send(box, *[None] * 1000)
    id, _ = box.merge(priority=50)
    box.clock.advance(6)
    box.take(1)
    check(box)
    assert held(box) == [id]
    _, reply = box.merge(priority=50)
    assert reply.codes == "m"
    check(box)
    assert held(box) == [id]


_WAITS = "redis.call('ZSCORE', store, id)"
_NOT_HELD = "(function(s) return s and tonumber(s) >= 0 and s end)"
# What a script would be that looks among scores from 0 on alone, as if there were no lanes.
PLACES: dict[str, tuple[Callable[[Any], None], str, str]] = {
    "get": (
        _get,
        "'store', redis.call('ZSCORE', store, id)",
        f"'store', {_NOT_HELD}(redis.call('ZSCORE', store, id))",
    ),
    "locate": (_locate, _WAITS, f"{_NOT_HELD}({_WAITS})"),
    "audit_scan": (
        _audit_scan,
        "redis.call('ZSCORE', store, id)",
        f"{_NOT_HELD}(redis.call('ZSCORE', store, id))",
    ),
    "resize_scan": (_resize_scan, _WAITS, f"{_NOT_HELD}({_WAITS})"),
    "cancel": (_cancel, _WAITS, f"{_NOT_HELD}({_WAITS})"),
    "reschedule": (_reschedule, _WAITS, f"{_NOT_HELD}({_WAITS})"),
    "set_priority": (_set_priority, _WAITS, f"{_NOT_HELD}({_WAITS})"),
    "merge": (
        _merge,
        "local score = scores and scores[place]",
        f"local score = scores and {_NOT_HELD}(scores[place])",
    ),
}


@pytest.mark.parametrize("script", PLACES)
def test_held_message_waits_whoever_asks(make_box, script):
    PLACES[script][0](make_box)


@pytest.mark.parametrize("script", PLACES)
def test_control_a_script_that_does_not_see_lanes_is_noticed(make_box, monkeypatch, script):
    claim, text, blind = PLACES[script]
    monkeypatch.setattr(script_loader, "load", loader([(script, text, blind)]))

    with pytest.raises(AssertionError):
        claim(make_box)
