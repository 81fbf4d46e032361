"""A row of the part `cost`: the cost of one verb for each message."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from bench.measurement import Measurement

# Column -> its heading. All values are for one message, in us except `calls` and `aof`.
COLUMNS = {
    "redis": "Redis",  # time of scripts, or of plain commands if there is no script
    "commands": "commands",  # share of the commands that scripts call
    "script": "script",  # share of the script itself
    "cpu": "CPU",  # CPU time of the server's main thread
    "calls": "calls",  # commands, called by scripts or by the client
    "client": "client",  # CPU time of the client
    "aof": "AOF B",  # bytes of the append-only file, with the body
}


@dataclass
class CostRow(Measurement):
    """A verb's cost for one message of a kind, k per call; `value` is the least of Redis's us.

    Attributes:
        verb: Verb, such as send, take or ack.
        kind: Kind of the messages.
        k: Messages per call.
        columns: Value of each round, by column.
        against: The same for another checkout, measured in turn with this checkout; may be empty.
    """

    verb: str = ""
    kind: str = ""
    k: int = 0
    columns: dict[str, list[float]] = field(default_factory=dict)
    against: dict[str, list[float]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        verb: str,
        kind: str,
        k: int,
        columns: dict[str, list[float]],
        against: dict[str, list[float]] | None = None,
    ) -> CostRow:
        """Return the row for these columns."""
        name = f"{verb}, {kind}, k = {k}"
        return cls(
            "cost", name, columns["redis"], "us", None, True, {}, verb, kind, k, columns,
            against or {},
        )  # fmt: skip

    @property
    def value(self) -> float:
        """Return the least of Redis's us."""
        return min(self.rounds)

    def least(self, column: str) -> float:
        """Return the least value of a column."""
        return min(self.columns[column])

    def as_json(self) -> dict[str, Any]:
        """Return all fields for a file, with least and median of each column."""
        row = super().as_json()
        row["rounds"] = [round(value, 4) for value in self.rounds]
        row["columns"] = {
            name: {"least": round(min(values), 4), "median": round(statistics.median(values), 4)}
            for name, values in self.columns.items()
        }
        return row
