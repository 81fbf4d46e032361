"""job_start.lua on a real server."""

from __future__ import annotations

import pytest

from rmq.features.dead_letters.jobs import scripts
from tests.lua.jobs import DEFINITION, JOB, clear, fields


def test_a_job_is_stored_with_its_definition_and_nobody_runs_it(box):
    clear(box)

    reply = box.run(scripts.job_start("rmq", JOB, DEFINITION))

    assert reply == (1, box.clock.now_ms)
    assert fields(box) == {
        "verb": "redrive", "rate": "", "began": str(box.clock.now_ms), "state": "running",
        "runner": "", "until": "0", "batch": "0", "recorded": "0",
    }  # fmt: skip


def test_sent_again_it_changes_nothing(box):
    clear(box)
    box.run(scripts.job_start("rmq", JOB, DEFINITION))
    before, began = fields(box), box.clock.now_ms
    box.clock.advance(5)

    assert box.run(scripts.job_start("rmq", JOB, ("verb", "other"))) == (0, began)
    assert fields(box) == before


@pytest.mark.parametrize("definition", [(), ("verb",)])
def test_a_definition_that_is_not_whole_is_refused(box, definition):
    clear(box)

    with pytest.raises(Exception, match="RMQARG fields"):
        box.run(scripts.job_start("rmq", JOB, definition))

    assert fields(box) == {}
