"""Groups of a topic: messages of one name that are delivered in order, or so many at a time.

`lua/lib/groups/groups.lua` keeps them; docs/decisions/0066-groups-in-lanes.md says why so.
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
GROUP_MARK = (
    "rmq-group"  # the header with the group of a message: the first one, or after the audit's
)
_SHARE = re.compile(r"[A-Za-z0-9._-]{1,64}")
_CONTROL = re.compile(r"[\0-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Groups:
    """How a topic delivers messages that are sent with a group.

    Args:
        order: one after the other, in the order in which they were sent; a larger priority goes
            first among those of the group that wait. Else up to `concurrency` at a time.
        concurrency: how many messages of a group are out at a time, 1 to 1000; 1 with `order`.
            A message is out while it may be taken or is in flight.
        share: how groups share what consumers take, where more than one has messages waiting:
            "equal", or the weight, 1 to 64, of those groups (or share keys) that are named; 1 for
            others. A larger priority always goes first.
        on_dead: what follows where a message of a group becomes a dead letter: "continue", or
            "hold": nothing of the group goes until somebody releases it (`Admin.group_release`).
    """

    order: bool = True
    concurrency: int = 1
    share: Literal["equal"] | Mapping[str, int] = "equal"
    on_dead: Literal["continue", "hold"] = field(default="continue")

    def __post_init__(self) -> None:
        """Check the values, and that they go together."""
        if not isinstance(self.order, bool):
            raise InvalidType(f"groups.order: {self.order!r}; give True or False")
        check_int(self.concurrency, "groups.concurrency", 1, CONCURRENCY_MAX)
        if self.order and self.concurrency != 1:
            raise InvalidValue(
                f"groups.concurrency: {self.concurrency} with order; messages that go in order go "
                "one at a time: leave it out, or give order=False"
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
        """The weights that are not 1, by group or share key."""
        return {} if self.share == "equal" else self.share

    def __str__(self) -> str:
        parts = ["order" if self.order else f"concurrency={self.concurrency}"]
        parts += ["on_dead=hold"] if self.on_dead == "hold" else []
        return ",".join(parts + [f"share.{name}={n}" for name, n in sorted(self.weights.items())])

    to_redis = __str__

    def of_slot(self) -> str:
        """Return the field `groups` of a slot, which scripts read."""
        return f"{self.concurrency}:{self.order:d}:{self.on_dead == 'hold':d}"


def parse_groups(value: object) -> Groups | None:
    """Return how a topic keeps groups, from itself or from text.

    Text is `off`, or parts with commas: `order` or `concurrency=5`, `on_dead=hold`, `share.gold=4`.

    Raises:
        InvalidValue: the text says nothing of the kind.
        InvalidType: it is neither.
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
    """Return the name of a group, or of a share, if it can be one.

    Raises:
        InvalidType: it is no text.
        InvalidValue: it is empty, too long, or has control characters.
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
    """Return the value of the header of a message of this group."""
    if share_key is None and weight == 1:
        return group
    return f"\1{weight}\1{share_key or ''}\1{group}"


def group_in(mark: str | None) -> str | None:
    """Return the group of a message from the value of its header."""
    return None if mark is None else mark.rpartition("\1")[2]


def share_in(mark: str | None) -> str | None:
    """Return the share key of a message from the value of its header; None: it has none."""
    return mark.split("\1")[2] or None if mark and mark.startswith("\1") else None


def weight_in(mark: str | None) -> int | None:
    """Return the weight of a message from the value of its header; None: it has no group."""
    if mark is None:
        return None
    return int(mark.split("\1")[1]) if mark.startswith("\1") else 1
