"""topic_resume.lua on a real server; test_topic_pause.py has what both refuse."""

from __future__ import annotations

from rmq.features.topic_admin import scripts
from tests.lua.test_topic_pause import fields


def test_resume_removes_it_and_a_second_one_changes_nothing(box):
    before = fields(box)
    box.run(scripts.topic_pause(box.handle, box.created, "me", "why"))

    first = box.run(scripts.topic_resume(box.handle, box.created))
    second = box.run(scripts.topic_resume(box.handle, box.created))

    assert (first.state, second.state) == (1, 0)
    assert fields(box) == before | {"revision": "2"} == second.kept


def test_topic_that_is_not_paused_is_left_alone(box):
    before = fields(box)

    reply = box.run(scripts.topic_resume(box.handle, box.created))

    assert (reply.state, fields(box)) == (0, before)
