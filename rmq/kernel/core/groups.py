"""Define how a topic delivers messages of a group: in order, or a limited number at a time.

Messages with the same group name form a group.

`lua/lib/groups/groups.lua` implements groups. docs/decisions/0066-groups-in-lanes.md explains the
design.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rmq.errors import InvalidType, InvalidValue
from rmq.kernel.core.validation import check_int, utf8

GROUP_BYTES, WEIGHT_MAX, CONCURRENCY_MAX = 200, 64, 1000
OFF = "off"
# Header with the group of a message. Only the headers of the audit and of kept results come before
# this header.
GROUP_MARK = "rmq-group"
_SHARE = re.compile(r"[A-Za-z0-9._-]{1,64}")
_CONTROL = re.compile(r"[\0-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Groups:
    """How a topic delivers messages that are sent with a group.

    Args:
        order: If True, the messages of a group are delivered one at a time, in the order of the
            sends. Among waiting messages of the group, a message with a larger priority is
            delivered first. If False, several messages of a group may be delivered at a time (see
            `concurrency`).
        concurrency: Maximum number of messages of a group that consumers may have at a time, 1 to
            1000. The number must be 1 if `order` is True. A message counts as soon as a consumer
            may receive it.
        share: How groups with waiting messages share the deliveries. Either "equal", or a map from
            a group or share key to its weight, 1 to 64. Names that are not in the map have weight
            1. A message with a larger priority is always delivered first.
        on_dead: Effect of a dead letter on its group. "continue" delivers the next messages. "hold"
            stops the group until it is released (`Admin.group_release`).
    """

    order: bool = True
    concurrency: int = 1
    share: Literal["equal"] | Mapping[str, int] = "equal"
    on_dead: Literal["continue", "hold"] = field(default="continue")

    def __post_init__(self) -> None:
        """Check each value, and that the values do not contradict each other."""
        if not isinstance(self.order, bool):
            raise InvalidType(f"groups.order: {self.order!r}; give True or False")
        check_int(self.concurrency, "groups.concurrency", 1, CONCURRENCY_MAX)
        if self.order and self.concurrency != 1:
            raise InvalidValue(
                f"groups.concurrency: {self.concurrency} with order; messages in order are "
                "delivered one at a time: leave concurrency out, or give order=False"
            )
        if self.on_dead not in ("continue", "hold"):
            raise InvalidValue(f"groups.on_dead: {self.on_dead!r}; give continue or hold")
        if self.share == "equal":
            return
        if not isinstance(self.share, Mapping):
            raise InvalidType(
                f"groups.share: {self.share!r:.80}; give 'equal', or weights as {{'gold': 4}}"
            )
        for name, weight in self.share.items():
            if not isinstance(name, str) or not _SHARE.fullmatch(name):
                raise InvalidValue(
                    f"groups.share: {name!r:.80}; give names of 1 to 64 of A-Z a-z 0-9 . _ -"
                )
            check_int(weight, f"groups.share[{name!r}]", 1, WEIGHT_MAX)

    @property
    def weights(self) -> Mapping[str, int]:
        """The weight of each group or share key, without the weights that are 1."""
        return {} if self.share == "equal" else self.share

    def __str__(self) -> str:
        parts = ["order" if self.order else f"concurrency={self.concurrency}"]
        parts += ["on_dead=hold"] if self.on_dead == "hold" else []
        return ",".join(parts + [f"share.{name}={n}" for name, n in sorted(self.weights.items())])

    to_redis = __str__

    def of_slot(self) -> str:
        """Return the setting `groups` as the string that scripts read."""
        return f"{self.concurrency}:{self.order:d}:{self.on_dead == 'hold':d}"


def parse_groups(value: object) -> Groups | None:
    """Read the setting `groups` from `Groups` or from text. Return None for `off`.

    The text is `off`, or has parts separated by commas. Examples of parts are `order`,
    `concurrency=5`, `on_dead=hold` and `share.gold=4`.

    Raises:
        InvalidValue: The text is not valid.
        InvalidType: The value is neither `Groups` nor text.
    """
    if value is None or value == OFF:
        return None
    if isinstance(value, Groups):
        return value
    if not isinstance(value, str):
        raise InvalidType(f"groups: {value!r:.80}; give rmq.Groups(...), its text, or None")
    order, concurrency, on_dead, share = True, 1, "continue", {}
    for part in value.replace(" ", "").split(","):
        name, equals, text = part.partition("=")
        if part == "order":
            order = True
        elif name == "on_dead":
            on_dead = text
        elif equals and text.isdecimal() and name == "concurrency":
            order, concurrency = False, int(text[:10])
        elif equals and text.isdecimal() and name.startswith("share."):
            share[name.removeprefix("share.")] = int(text[:10])
        else:
            raise InvalidValue(
                f"groups: {part!r:.80} in {value!r:.80}; give off, or parts with commas: order or "
                "concurrency=5, on_dead=hold, share.gold=4"
            )
    return Groups(order, concurrency, share or "equal", on_dead)  # type: ignore[arg-type]


def check_group(value: object, field_name: str = "group") -> str:
    """Check the name of a group or a share key, and return it.

    Raises:
        InvalidType: The name is not a str.
        InvalidValue: The name is empty, too long, or has control characters.
    """
    if not isinstance(value, str):
        raise InvalidType(f"{field_name}: {type(value).__name__}; give a str")
    if not 1 <= len(utf8(value, field_name)) <= GROUP_BYTES or _CONTROL.search(value):
        raise InvalidValue(
            f"{field_name}: {value!r:.80}; give 1 to {GROUP_BYTES} bytes of UTF-8 without control "
            "characters"
        )
    return value


def mark_of(group: str, share_key: str | None, weight: int) -> str:
    """Encode a message's group, share key and weight as the value of a header."""
    if share_key is None and weight == 1:
        return group
    return f"\1{weight}\1{share_key or ''}\1{group}"


def group_in(mark: str | None) -> str | None:
    """Return the group from a header value that `mark_of` returned."""
    return None if mark is None else mark.rpartition("\1")[2]


def share_in(mark: str | None) -> str | None:
    """Return the share key from a header value that `mark_of` returned, or None."""
    return mark.split("\1")[2] or None if mark and mark.startswith("\1") else None


def weight_in(mark: str | None) -> int | None:
    """Return the weight from a header value that `mark_of` returned.

    If the message has no group, return None.
    """
    if mark is None:
        return None
    return int(mark.split("\1")[1]) if mark.startswith("\1") else 1
