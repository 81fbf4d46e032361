"""A send with a dedup key adds nothing while a message of that key lives, or was settled lately."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from typing import Any

import pytest

import rmq
from rmq.kernel.core import ids
from rmq.kernel.topic.slot_choice import slot_of
from tests.conftest import Clock
from tests.forkserver import Forked
from tests.integration.driven import both_clients, connect
from tests.servers import Server


def statuses(topic: Any, *keys: str | bytes, **how: Any) -> list[str]:
    return [topic.send(n, dedup_key=key, **how).status for n, key in enumerate(keys)]


@both_clients
def test_the_second_send_of_a_key_returns_the_id_of_the_first_and_stores_nothing(
    api: Any, name: str
) -> None:
    topic = api.topic(name, slots=8)

    first = topic.send("a", dedup_key="order-7", priority=900)
    second = topic.send("b", dedup_key="order-7")

    assert (first.status, second.status) == ("stored", "duplicate")
    assert first.id == second.id == second.message_id
    assert (topic.get(first.id).body, topic.get(first.id).priority) == ("a", 900)
    assert api.admin.stats(name)["accepted"] == 1
    assert first.id.made_at is None


def test_each_state_of_the_first_one_counts_and_each_key_is_its_own(api: Any, name: str) -> None:
    topic = api.topic(name, max_retries=0)
    topic.send_many(
        [rmq.Outgoing(key, dedup_key=key) for key in ("flying", "dead", "settled", "given back")]
    )
    topic.send("later", dedup_key="later", delay=60)
    with topic.consumer() as consumer:
        taken = {one.body: one for one in consumer.receive(10)}
        taken["dead"].reject("why")
        taken["settled"].ack()
        taken["given back"].release()

        keys = ["flying", "dead", "settled", "given back", "later"]
        assert statuses(topic, *keys) == ["duplicate"] * 5
        assert statuses(topic, "another") == ["stored"]
        taken["flying"].ack()


@pytest.mark.parametrize("settle", ["ack", "pop"])
def test_a_settled_key_is_remembered_for_the_window_and_then_is_new(
    api: Any, name: str, clock: Clock, settle: str
) -> None:
    topic = api.topic(name, dedup_window=60)
    first = topic.send("x", dedup_key="k")
    mode = "at_least_once" if settle == "ack" else "at_most_once"
    with topic.consumer(mode=mode) as consumer:
        (d,) = consumer.receive()
        if settle == "ack":
            d.ack()

    clock.advance(59.9)
    assert statuses(topic, "k") == ["duplicate"]
    clock.advance(61)
    again = topic.send("y", dedup_key="k")
    assert (again.status, again.id) == ("stored", first.id)
    with topic.consumer() as consumer:
        assert [d.body for d in consumer.receive()] == ["y"]


def remove(verb: str, api: Any, name: str, first: Any, clock: Clock) -> None:
    """Remove the message of a key by a verb, or leave it dead."""
    topic = api.topic(name)
    if verb == "cancel":
        assert topic.cancel(first.id) == "cancelled"
    elif verb == "group_purge":
        assert api.admin.group_purge(name, "g") == 1
    elif verb == "drop_lowest":
        assert topic.send("other", priority=900).status == "stored"
    elif verb.startswith("expire"):
        clock.advance(61)
        with topic.consumer() as consumer:
            assert consumer.receive() == []
    elif verb == "purge":
        assert api.admin.purge(name, "waiting") == 1
    else:
        with topic.consumer() as consumer:
            consumer.receive()[0].reject("why")
        if verb != "reject":
            keep = 0 if verb == "dlq purge, keep 0" else None
            assert api.admin.purge(name, "dead", keep=keep) == 1


# The table "Which verb frees a dedup key" of docs/guarantees.md.
FREED = {
    "cancel": True, "purge": True, "group_purge": True, "expire, drop": True, "drop_lowest": True,
    "dlq purge, keep 0": True, "dlq purge": False, "expire, dead": False, "reject": False,
}  # fmt: skip


@pytest.mark.parametrize("verb", FREED)
def test_a_verb_that_removes_a_message_frees_its_dedup_key(
    api: Any, name: str, clock: Clock, verb: str
) -> None:
    options: dict[str, Any] = {}
    if verb == "drop_lowest":
        options = {"max_length": 1, "overflow": "drop_lowest"}
    elif verb == "group_purge":
        options = {"groups": rmq.Groups()}
    elif verb.startswith("expire"):
        options = {"expires": 60, "on_expire": verb.split(", ")[1]}
    topic = api.topic(name, dedup_window=600, **options)
    group = {"group": "g"} if verb == "group_purge" else {}
    first = topic.send("x", dedup_key="k", **group)
    remove(verb, api, name, first, clock)

    again = topic.send("y", dedup_key="k", priority=950, **group)

    assert again.status == ("stored" if FREED[verb] else "duplicate")
    if FREED[verb]:
        assert topic.get(first.id).body == "y"
        assert topic.send("z", dedup_key="k", priority=950, **group).status == "duplicate"


def test_a_cancelled_message_does_not_come_back_by_a_late_send_of_its_id(
    api: Any, name: str
) -> None:
    topic = api.topic(name)
    id = topic.new_id()
    topic.send("x", id=id, delay=60)
    assert topic.cancel(id) == "cancelled"

    assert topic.send("x", id=id, delay=60).status == "duplicate"


def test_without_a_window_a_key_still_counts_while_its_message_lives(api: Any, name: str) -> None:
    topic = api.topic(name, dedup_window=0)

    assert statuses(topic, "k", "k") == ["stored", "duplicate"]
    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        assert statuses(topic, "k") == ["duplicate"]
        d.ack()
        assert statuses(topic, "k") == ["stored"]


def test_what_was_purged_or_redriven_is_known_or_not_as_any_message_is(api: Any, name: str) -> None:
    topic = api.topic(name)
    topic.send("a", dedup_key="k")
    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        d.reject("why")

        assert api.admin.redrive(name).sent == 1
        assert statuses(topic, "k") == ["duplicate"]
        (d,) = consumer.receive()
        d.reject("why")
        assert api.admin.purge(name, "dead", keep=0) == 1
        assert statuses(topic, "k") == ["stored"]


def test_keys_repeated_in_one_batch_are_stored_once_whatever_stands_between(
    api: Any, name: str
) -> None:
    topic = api.topic(name, slots=4)
    out: list[rmq.Outgoing] = []
    for n in range(2500):
        out.append(rmq.Outgoing(n, dedup_key=f"k{n % 50}", headers={"n": "1"} if n % 3 else None))
        out.append(rmq.Outgoing(n))

    found = topic.send_many(out)

    assert Counter(one.status for one in found) == {"stored": 2550, "duplicate": 2450}
    assert [one.status for one in found[:100:2]] == ["stored"] * 50
    assert {one.status for one in found[100::2]} == {"duplicate"}
    assert len({one.id for one in found}) == 2550
    assert api.admin.stats(name)["accepted"] == 2550


def test_the_key_chooses_the_slot_unless_a_basis_does(api: Any, name: str) -> None:
    topic = api.topic(name, slots=16)
    for key in ("a", "é", "order-7"):
        assert topic.send(1, dedup_key=key).slot == slot_of(key, 16)
        based = topic.send(2, dedup_key=key, slot_basis="user-1")
        assert based.slot == based.id.slot == slot_of("user-1", 16)

    # The basis is part of what is compared: another basis may be another slot, and a slot knows
    # only its own. Where both agree, the key decides.
    assert topic.send(3, dedup_key="a", slot_basis="user-1").status == "duplicate"
    assert topic.send(3, dedup_key="a").status == "duplicate"


def test_text_and_its_utf8_are_one_key(api: Any, name: str) -> None:
    topic = api.topic(name, slots=16)

    assert statuses(topic, "é", "é".encode(), b"\xff", b"\x00" * 200) == [
        "stored", "duplicate", "stored", "stored",
    ]  # fmt: skip


def test_topics_do_not_share_their_keys(api: Any, name: str) -> None:
    one, two = api.topic(name), api.topic(f"{name}-b")

    assert one.send(1, dedup_key="k").id != two.send(1, dedup_key="k").id
    assert statuses(two, "k") == ["duplicate"]


def test_a_repeat_of_what_was_due_is_a_duplicate_and_no_time_that_is_past(
    api: Any, name: str, clock: Clock
) -> None:
    topic = api.topic(name, slots=4)
    at = clock.now_ms + 5000
    out = [rmq.Outgoing(n, at=at, dedup_key=f"k{n}") for n in range(20)]
    assert {one.status for one in topic.send_many(out)} == {"stored"}

    clock.advance(30)

    assert {one.status for one in topic.send_many(out)} == {"duplicate"}


def test_a_repeat_is_answered_where_the_topic_is_full(api: Any, name: str) -> None:
    topic = api.topic(name, max_length=1)

    assert statuses(topic, "k", "k") == ["stored", "duplicate"]
    with pytest.raises(rmq.QueueFull):
        topic.send("x", dedup_key="another")


@both_clients
def test_interceptors_see_the_key_and_may_give_one(link: Any, name: str) -> None:
    class Keyed(rmq.Interceptor):
        def before_send(self, topic: str, message: rmq.Outgoing) -> None:
            message.dedup_key = f"{message.dedup_key}:{message.body}"

    topic = link(Keyed()).topic(name)

    assert [topic.send(body, dedup_key="k").status for body in (1, 1, 2)] == [
        "stored", "duplicate", "stored",
    ]  # fmt: skip


@pytest.mark.fault("F22")
def test_two_processes_at_once_store_each_key_once(kind: str, server: Server, name: str) -> None:
    both = [
        Forked(
            "tests.integration.dedup_child", kind, server.url, name,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        for _ in range(2)
    ]  # fmt: skip
    for one in both:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    for one in both:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    mine, theirs = (json.loads(one.communicate(timeout=60)[0]) for one in both)

    told = Counter([*mine, *theirs])
    with connect(kind, server.url) as api:
        accepted = api.admin.stats(name)["accepted"]
    print(f"\nFIG 600 keys, each by 2 processes: {accepted} stored, {told['duplicate']} duplicates")
    assert all(sorted(pair) == ["duplicate", "stored"] for pair in zip(mine, theirs, strict=True))
    assert accepted == 600


def test_made_ids_stand_before_derived_ones_so_that_the_two_never_meet(api: Any, name: str) -> None:
    topic = api.topic(name)
    made = topic.new_id()
    derived = topic.send(1, dedup_key="k").id

    assert made < ids.MessageId(b"\x80" + bytes(15)) <= derived
    assert topic.get(str(derived)).body == 1
