"""redrive_settle.lua on a real server."""

from __future__ import annotations

from rmq.features.dead_letters import scripts
from rmq.features.dead_letters.scripts import Arrival
from rmq.kernel.core.ids import member_of
from rmq.kernel.topic import scripts as topic_scripts
from tests.lua.box import GONE, Box
from tests.lua.moving import ANOTHER, arrival, bury, entry, hold, send, settle

MONTH_S = 30 * 86_400


def test_a_letter_that_was_stored_is_removed_with_all_that_belongs_to_it(box: Box) -> None:
    (id,) = bury(box, large=b"large")
    hold(box, id)

    assert settle(box, (entry(id), True)) == "1"

    state = box.state()
    assert not {"dead", "records", "failures", "bodies"} & set(state)
    assert box.counter("redriven") == 1
    assert box.redis.hexists(box.keys.slot, b">" + member_of(id)) is False
    assert box.redis.hexists(box.keys.slot, "holds") is False


def test_a_letter_that_was_refused_is_let_go_of_and_stays(box: Box) -> None:
    (id,) = bury(box)
    hold(box, id)
    before = box.state()

    assert settle(box, (entry(id), False)) == "r"

    changed = box.changed(before)
    assert changed == {("slot", "holds"): GONE, ("slot", ">" + member_of(id).hex()): GONE}
    assert box.score(id, "dead") is not None
    assert box.run(scripts.redrive(box.handle, box.keys, box.session(), [id])) == "1"


def test_another_token_changes_nothing(box: Box) -> None:
    (id,) = bury(box)
    hold(box, id)
    before = box.state()

    assert settle(box, (entry(id, ANOTHER), True), (entry(id, ANOTHER), False)) == "00"

    assert box.changed(before) == {}


def test_an_id_that_its_sender_keeps_is_remembered_so_that_a_second_send_is_a_duplicate(
    box: Box,
) -> None:
    kept, other = bury(box, kept=True)[0], bury(box)[0]
    hold(box, kept, other)

    assert settle(box, (entry(kept), True), (entry(other), True)) == "11"

    assert box.run(box.send_command([kept, other])).codes == "ds"


def test_an_id_that_its_sender_keeps_is_noted_as_gone_to_another_topic_for_30_days(
    box: Box,
) -> None:
    kept, other = bury(box, kept=True)[0], bury(box)[0]
    hold(box, kept, other)

    settle(box, (entry(kept), True), (entry(other), True))

    assert box.run(topic_scripts.locate(box.keys, [kept, other])).codes == "mg"
    assert box.redis.ttl(box.keys.arrivals) == MONTH_S
    box.clock.advance(MONTH_S)
    (later,) = bury(box, kept=True)
    hold(box, later)
    settle(box, (entry(later), True))
    assert box.run(topic_scripts.locate(box.keys, [kept, later])).codes == "gm"


def test_notes_of_letters_that_went_away_outlive_the_notes_of_those_that_came(box: Box) -> None:
    kept, come = bury(box, kept=True)[0], box.ids()[0]
    hold(box, kept)
    settle(box, (entry(kept), True))
    send(box, Arrival(entry(come), b"t", b""))
    box.clock.advance(7200)

    send(box, arrival(box, box.ids()[0]))

    assert box.run(topic_scripts.locate(box.keys, [kept])).codes == "m"
    assert box.redis.zscore(box.keys.arrivals, entry(come)) is None


def test_a_letter_that_comes_back_is_no_longer_noted_as_gone(box: Box) -> None:
    (kept,) = bury(box, kept=True)
    box.redis.hset(box.keys.slot, "dedup_ms", 0)
    hold(box, kept)
    settle(box, (entry(kept), True))

    assert send(box, arrival(box, kept, ANOTHER)) == "s"
    box.ack(box.take_one())

    assert box.run(topic_scripts.locate(box.keys, [kept])).codes == "g"
