"""A change of one message does not create the topic that it does not find."""

from __future__ import annotations

from typing import Any

import pytest

import rmq
from tests.integration.driven import both_clients


@pytest.mark.parametrize(
    ("verb", "options"),
    [("cancel", {}), ("reschedule", {"delay": 1}), ("set_priority", {"priority": 50})],
)
@both_clients
def test_a_change_of_a_message_does_not_create_its_topic(
    api: Any, name: str, verb: str, options: dict[str, int]
) -> None:
    id = api.topic(f"{name}-other").send("x").id

    with pytest.raises(rmq.TopicNotFound):
        getattr(api.topic(name), verb)(id, **options)

    with pytest.raises(rmq.TopicNotFound):
        api.admin.stats(name)


@both_clients
@pytest.mark.parametrize("number", [0, 1, 1023])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_topic_is_not_named_like_a_slot_of_another(
    api: Any, name: str, number: int, is_first: bool
) -> None:
    names = [name, f"{name}_{number}"]
    first, second = names if is_first else names[::-1]
    api.topic(first).open()

    with pytest.raises(rmq.InvalidValue, match=f"'{second}' cannot be created next to '{first}'"):
        api.topic(second).send(1)
    with pytest.raises(rmq.TopicNotFound):
        api.topic(second).open(create=False)

    api.topic(first).send(1)  # it goes on
    api.admin.topic_delete(first, force=True)
    assert api.topic(second).send(1).status == "stored"


def test_a_number_that_is_no_slot_is_a_name_like_others(api: Any, name: str) -> None:
    for each in (name, f"{name}_1024", f"{name}_01", f"{name}-1", f"{name}_x", "_1", f"{name}_"):
        assert api.topic(each).open()
