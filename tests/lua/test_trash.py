"""trash.lua on a real server."""

from __future__ import annotations

from rmq.features.dead_letters import scripts
from rmq.kernel.topic import scripts as topic_scripts
from tests.lua.box import GONE
from tests.lua.moving import bury


def trash(box, *ids, keep_ms=1000, died_by=None):
    return box.run(scripts.trash(box.keys, box.session(), ids, keep_ms, died_by))


def test_a_dead_letter_goes_to_the_trash_with_its_time_of_death_and_its_record_stays(box):
    a, b = bury(box, 2)
    died = box.clock.now_ms
    box.clock.advance(5)
    before = box.state()

    assert trash(box, a) == "1"

    assert box.changed(before) == {
        ("dead", a): GONE,
        ("trash", a): box.clock.now_ms + 1000,
        ("deaths", a): str(died).encode(),
        ("slot", "trashed"): "1",
    }
    assert box.order("dead") == [b]
    found = box.run(topic_scripts.get(box.keys, a))
    assert (found.queue, found.score) == ("trash", box.clock.now_ms + 1000)
    stats = box.run(topic_scripts.stats(box.keys))
    assert (stats["dead"], stats["trash"], stats["purged"]) == (1, 1, 0)
    assert box.run(topic_scripts.locate(box.keys, [a])).codes == "d"


def commands_of_a_take_and_an_ack(box):
    box.send()
    box.redis.hset(box.keys.slot, "takes", 0)  # one take in five looks at more
    box.redis.config_resetstat()
    batch = box.prepare()
    assert not batch.retries_left  # the short way, on which nobody has failed
    box.ack(*box.leases(batch))
    return sum(row["calls"] for row in box.redis.info("commandstats").values())


def test_letters_in_the_trash_make_no_take_and_no_ack_longer(box):
    dead = bury(box, 10)
    commands_of_a_take_and_an_ack(box)  # Redis has the scripts now
    costs = [commands_of_a_take_and_an_ack(box)]
    trash(box, *dead[:5])
    costs.append(commands_of_a_take_and_an_ack(box))
    box.run(scripts.restore(box.keys, box.session(), dead[:5]))
    costs.append(commands_of_a_take_and_an_ack(box))
    trash(box, *dead[:5])
    costs.append(commands_of_a_take_and_an_ack(box))
    box.clock.advance(10)
    assert box.run(topic_scripts.tidy(box.keys)).dropped == 5
    costs.append(commands_of_a_take_and_an_ack(box))

    assert costs[0] == costs[2] == costs[4]
    assert costs[1] == costs[3] == costs[0] + 2  # each reads how many letters the trash has


def test_kept_for_no_time_it_is_deleted_with_everything_of_it(box):
    (id,) = bury(box, large=b"large")

    assert trash(box, id, keep_ms=0) == "1"

    assert {part for part in box.state() if not part.startswith("replay")} == {"slot"}
    assert box.counter("purged") == 1


def test_only_what_died_until_then_goes_and_each_once(box):
    (early,) = bury(box)
    then = box.clock.now_ms
    (late,) = bury(box)
    waiting = box.one()

    assert trash(box, late, early, early, waiting, died_by=then) == "0100"
    assert box.order("dead") == [late]


def test_a_letter_in_the_trash_is_not_redriven_and_its_id_is_a_duplicate(box):
    (id,) = bury(box, kept=True)
    trash(box, id)
    before = box.state()

    assert box.run(scripts.redrive(box.handle, box.keys, box.session(), [id])) == "0"
    assert box.run(box.send_command([id])).codes == "d"
    assert box.state() == before


def test_tidy_deletes_it_when_its_time_has_come(box):
    a, b = bury(box, 2)
    trash(box, a)
    trash(box, b, keep_ms=2000)
    box.clock.advance(1)

    assert box.run(topic_scripts.tidy(box.keys, 100)).dropped == 1
    assert box.run(topic_scripts.tidy(box.keys, 100)).dropped == 0
    assert (set(box.state()["trash"]), set(box.state()["records"])) == ({b}, {b})
    assert box.counter("purged") == 1
    box.clock.advance(1)
    assert box.run(topic_scripts.tidy(box.keys, 100)).dropped == 1
    assert {part for part in box.state() if not part.startswith("replay")} == {"slot"}


def test_a_page_of_tidy_is_no_larger_than_asked_for(box):
    ids = bury(box, 5)
    trash(box, *ids)
    box.clock.advance(2)

    assert [box.run(topic_scripts.tidy(box.keys, 2)).dropped for _ in range(4)] == [2, 2, 1, 0]


def test_a_thousand_in_one_call(box):
    ids = bury(box, 1000)

    assert trash(box, *ids) == "1" * 1000
