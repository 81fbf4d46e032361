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
