"""Convert the labels of a task to the options of a send.

taskiq converts the values of labels to text before the broker gets them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from rmq.errors import InvalidValue

PRIORITY_MIN, PRIORITY_MAX = 17, 1_048_575  # the priorities of RMQ
NAME_BYTES = 200  # longest name of a group, and longest dedup key
DELAY_MAX_S = 10 * 365 * 86_400  # as long as RMQ delays a message
# Labels of a task that a retry middleware of taskiq, or `Context.requeue`, has sent again.
SENT_AGAIN = ("_retries", "X-Taskiq-requeue")
_NOT_IN_TYPES = re.compile(r"[^A-Za-z0-9._:/-]")


def type_of(task_name: str) -> str:
    """Return the message type of a task.

    The type is the name of the task. The function replaces characters that a type cannot have by
    `_`.
    """
    return _NOT_IN_TYPES.sub("_", task_name)[:128]


def _delay(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds <= DELAY_MAX_S:
        raise ValueError
    return seconds


def _at(text: str) -> datetime | int:
    if text.isdecimal():
        return int(text)
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError
    return moment


def _priority(text: str) -> int:
    number = int(text)
    if not PRIORITY_MIN <= number <= PRIORITY_MAX:
        raise ValueError
    return number


def _name(text: str) -> str:
    if not 1 <= len(text.encode()) <= NAME_BYTES:
        raise ValueError
    return text


# By label: the function that reads its text, and what a caller must give.
_LABELS: dict[str, tuple[Callable[[str], Any], str]] = {
    "delay": (_delay, "give a number of seconds, 0 to ten years, for example 5 or 0.5"),
    "at": (_at, "give an aware datetime, or milliseconds since the epoch as an int"),
    "priority": (_priority, f"give a number from {PRIORITY_MIN} to {PRIORITY_MAX}"),
    "group": (_name, f"give a text of 1 to {NAME_BYTES} bytes"),
    "dedup_key": (_name, f"give a text of 1 to {NAME_BYTES} bytes"),
}


def send_options(labels: Mapping[str, Any]) -> dict[str, Any]:
    """Return the labels of a task as options of `Topic.send`.

    The function ignores a label that is None. If taskiq sends a task again, the task has the labels
    of its first send. The function then ignores `dedup_key`, because the running task still has the
    key. If there is a `delay`, the function also ignores `at`.

    Raises:
        InvalidValue: A label has a wrong value.
    """
    options: dict[str, Any] = {}
    for label, (read, needed) in _LABELS.items():
        text = str(labels.get(label))
        if text == "None":
            continue
        try:
            options[label] = read(text)
        except ValueError:
            raise InvalidValue(f"label {label}: {text!r}; {needed}") from None
    if any(label in labels for label in SENT_AGAIN):
        options.pop("dedup_key", None)
        if "delay" in options:
            options.pop("at", None)
    if "at" in options and "delay" in options:
        raise InvalidValue("labels delay and at: a task has both; give one of them")
    return options
