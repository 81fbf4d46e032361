"""The books of a bank after a run: an auditor that knows what was ordered, and nothing of RMQ.

    lost         was ordered, and never applied
    repeated     applied more than once
    unexpected   applied, and ordered otherwise or not at all
    astray       cents that the accounts have together beyond what they began with
    wrong        accounts whose balance is not what the transfers make of it
    left, dead   messages in the queue, and in the DeadQueue
    never        faults that were planned, and did not happen
    dropped      those that did not, because the work had come to its end

Any of the first seven makes a run invalid. A run with a fault that never was, or without any, or
without a transfer, proves nothing: its verdict is `unknown`, which is a failure too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import sqlalchemy as sa

from tests.faults.bank import OPENING_CENTS, Transfer, accounts, transfers


@dataclass
class Books:
    """The outcome of a run."""

    ordered: int
    rows: int
    applied: Counter[str]
    lost: list[str]
    repeated: list[str]
    unexpected: list[str]
    astray: int
    wrong: list[int]
    left: int
    dead: int
    fired: Counter[str]
    never: list[str]
    dropped: Counter[str]

    @property
    def state(self) -> str:
        found = (self.lost, self.repeated, self.unexpected, self.astray, self.wrong)
        if any(found) or self.left or self.dead:
            return "invalid"
        return "valid" if self.applied and self.fired and not self.never else "unknown"

    def __str__(self) -> str:
        once = sum(count == 1 for count in self.applied.values())
        return (
            f"{self.state}: {self.ordered} transfers, {once} applied once, "
            f"lost {len(self.lost)}, repeated {len(self.repeated)}, "
            f"unexpected {len(self.unexpected)}, cents astray {self.astray}, "
            f"wrong accounts {len(self.wrong)}, left {self.left}, dead {self.dead}, "
            f"faults {dict(sorted(self.fired.items()))}, never {self.never}, "
            f"dropped {dict(self.dropped)}"
        )


def audit(
    engine: sa.Engine,
    ordered: Iterable[Transfer],
    *,
    left: int,
    dead: int,
    fired: Counter[str],
    planned: Counter[str],
    dropped: Counter[str],
) -> Books:
    """Audit a bank whose queue has come to rest."""
    with engine.connect() as connection:
        rows = [Transfer(*row[1:]) for row in connection.execute(sa.select(transfers))]
        balances = {row.id: row.balance for row in connection.execute(sa.select(accounts))}
    wanted = {one.key: one for one in ordered}
    applied = Counter(row.key for row in rows)
    due = dict.fromkeys(balances, OPENING_CENTS)
    for row in rows:
        due[row.source] -= row.cents
        due[row.target] += row.cents
    return Books(
        len(wanted), len(rows), applied,
        lost=[key for key in wanted if not applied[key]],
        repeated=[key for key, count in applied.items() if count > 1],
        unexpected=[row.key for row in rows if wanted.get(row.key) != row],
        astray=sum(balances.values()) - len(balances) * OPENING_CENTS,
        wrong=[id for id, balance in balances.items() if balance != due[id]],
        left=left, dead=dead, fired=fired,
        never=sorted((planned - fired - dropped).elements()), dropped=dropped,
    )  # fmt: skip
