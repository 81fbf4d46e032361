"""topic_resume.lua on a real server; test_topic_pause.py has what both refuse."""

from __future__ import annotations

from rmq.features.topic_admin import scripts


def test_resume_removes_it_and_a_second_one_changes_nothing(box):
    before = box.topic_fields()
    box.run(scripts.topic_pause(box.handle, box.created, "me", "why"))

    first = box.run(scripts.topic_resume(box.handle, box.created))
    second = box.run(scripts.topic_resume(box.handle, box.created))

    assert (first.state, second.state) == (1, 0)
    assert box.topic_fields() == before | {"revision": "2"} == second.kept


def test_topic_that_is_not_paused_is_left_alone(box):
    before = box.topic_fields()

    reply = box.run(scripts.topic_resume(box.handle, box.created))

    assert (reply.state, box.topic_fields()) == (0, before)
