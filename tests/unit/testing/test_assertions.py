from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rmq.kernel.core.ids import MessageId
from rmq.kernel.core.message import Message
from rmq.testing import assertions
from rmq.testing.assertions import MessageCriteria

NOW = datetime(2030, 1, 31, 9, tzinfo=UTC)


def message(**fields: Any) -> Message:
    defaults: dict[str, Any] = dict.fromkeys(Message.__dataclass_fields__)
    defaults |= {"id": MessageId(bytes(16)), "queue": "store", "body": 7, "headers": {}}
    return Message(**defaults | {"deliveries": 0} | fields)


def criteria(**fields: Any) -> MessageCriteria:
    defaults: dict[str, Any] = dict.fromkeys(MessageCriteria._fields)
    defaults |= {"any_body": "body" not in fields, "within": 1.0}
    return MessageCriteria(**defaults | fields)


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        ({}, True),
        ({"body": 7}, True),
        ({"body": 8}, False),
        ({"body": lambda body: body > 6}, True),
        ({"priority": 100}, True),
        ({"priority": 17}, False),
        ({"merge_key": "a"}, True),
        ({"merge_key": "b"}, False),
        ({"headers": {"tenant": "x"}}, True),
        ({"headers": {"tenant": "y"}}, False),
        ({"due_in": 60}, True),
        ({"due_in": timedelta(seconds=62)}, False),
        ({"due_in": 62, "within": 3}, True),
    ],
)
def test_a_message_fits_if_it_meets_every_criterion(wanted: dict[str, Any], fits: bool) -> None:
    sent = message(
        priority=100,
        merge_key="a",
        headers={"tenant": "x", "trace": "1"},
        due=NOW + timedelta(seconds=60),
    )

    assert criteria(**wanted).fits(sent, NOW) is fits


def test_a_long_list_of_messages_is_cut() -> None:
    lines = assertions.list_messages("waiting", [message(body=n) for n in range(12)], NOW)

    assert lines[:2] == ["  waiting:", "    0"]
    assert len(lines) == 1 + assertions.LISTED_MAX + 1
    assert lines[-1] == "    and 2 more"
