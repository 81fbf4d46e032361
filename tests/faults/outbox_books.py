"""The books of a shop after a run: what it promised, against what Redis and PostgreSQL have.

    lost         an order is committed and was never packed, or its message never stored
    repeated     packed more than once
    ghosts       packed or stored without an order: of a transaction that was rolled back
    open         stubs that are not confirmed; notes: log rows that were left behind
    miscounted   `sends` of a stub is not the number of answers to its sends, less those that were
                 answered and not counted: known exactly, but for a transaction that died with the
                 database, which may have counted
    unexplained  stored again, although the life before did not end in a FLUSHALL
    needless     resent while it was in the queue: answered "duplicate", and neither a lost answer
                 nor a resender that died before it counted explains that
    disturbed    controls that were stored twice or resent, and delayed ones that came early
    overtaken    of one slot_basis, stored before what was written earlier
    left, dead   messages in the queues, and in the DeadQueues
    never        what was planned and did not happen, a control that was never asked about included

Any of these but the last makes a run invalid; the last makes it `unknown`, a failure too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from rmq.sql.outbox.tables import CONFIRMED, logs, stubs
from tests.faults.aof import Lives
from tests.faults.outbox_shop import CONTROLS, DELAYED, HELD, SLOW, SNOOZED, orders, packed

Event = dict[str, Any]
LOOKS = {HELD: ("store", 3), SNOOZED: ("store", 1), SLOW: ("prepare", 1)}  # where, how often


@dataclass
class Books:
    """The outcome of a run."""

    wrong: dict[str, list[Any]]
    fired: Counter[str]
    never: list[str]
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def state(self) -> str:
        if any(self.wrong.values()):
            return "invalid"
        return "valid" if self.figures["packed"] and self.fired and not self.never else "unknown"

    def __getattr__(self, name: str) -> list[Any]:
        if name.startswith("_") or name not in self.wrong:
            raise AttributeError(name)
        return self.wrong[name]

    def __str__(self) -> str:
        wrong = {name: len(found) for name, found in self.wrong.items() if found}
        fired = dict(sorted(self.fired.items()))
        return f"{self.state}: never {self.never}, wrong {wrong}, faults {fired}, {self.figures}"


class Auditor:
    """Reads everything once."""

    def __init__(self, engine: sa.Engine, history: Iterable[Event], lives: Lives) -> None:
        self.lives = lives
        with engine.connect() as connection:
            self.rows = {one.id: one for one in connection.execute(sa.select(stubs))}
            self.orders = {one.stub: one for one in connection.execute(sa.select(orders))}
            self.packed = Counter(
                (one.stub, one.key) for one in connection.execute(sa.select(packed))
            )
            self.notes = list(connection.execute(sa.select(logs.c.id)).scalars())
        self.answer_counts: Counter[tuple[str, str, str]] = Counter()  # stub, who, answer
        self.sure: Counter[str] = Counter()  # sent, and certainly not counted
        self.unsure: Counter[str] = Counter()  # sent, and perhaps not counted
        self.looked: Counter[tuple[str, str | None]] = Counter()  # stub, where it was
        self.begun: dict[str, int] = {}  # ms
        self.fates: Counter[str] = Counter()
        self.undone: set[str] = set()
        self.asserted: set[str] = set()  # a commit was answered
        self.fired: Counter[str] = Counter()
        self.runs = 0
        for event in history:
            self._read(event)

    def _read(self, event: Event) -> None:
        kind, some = event["e"], event.get("stubs", ())
        if kind == "told":
            self.answer_counts[event["stub"], event["who"], event["answer"]] += 1
        elif kind == "uncounted":
            (self.sure if event["sure"] else self.unsure).update(some)
        elif kind == "looked":
            self.looked.update(event["at"].items())
        elif kind == "begin":
            self.runs += 1
            self.begun.setdefault(event["stub"], event["wall"])
        elif kind == "fault":
            self.fired[event["name"]] += 1
            if event["name"].endswith(" unmarked"):
                self.sure.update(some)
            elif event["name"] == "kill producer open":
                self.undone.update(some)
            elif event["name"] == "kill producer committed":
                self.asserted.update(some)
        elif kind == "ended":
            self.fates[event["fate"]] += 1
            if event["fate"] != "unknown":
                (self.asserted if event["fate"] == "committed" else self.undone).update(some)

    # --- answers ---------------------------------------------------------------------------------

    def answered(self, stub: str, who: str = "", *answers: str) -> int:
        """Return how many sends were answered, by role and answer."""
        roles = [who] if who else ["relay", "resender"]
        wanted = answers or ("stored", "duplicate")
        return sum(self.answer_counts[stub, role, answer] for role in roles for answer in wanted)

    def unanswered(self, stub: str) -> int:
        """Return how many stores had their reply lost, or answered only at a second try."""
        return len(self.lives.ends.get(stub, ())) - self.answered(stub, "", "stored")

    # --- what may be wrong -----------------------------------------------------------------------

    def miscounted(self) -> list[tuple[str, int, int]]:
        """Stubs whose count is not that of their sends: id, answers, count."""
        found = []
        for stub, row in self.rows.items():
            over = self.answered(stub) - row.sends
            if not self.sure[stub] <= over <= self.sure[stub] + self.unsure[stub]:
                found.append((stub, self.answered(stub), row.sends))
        return found

    def needless(self) -> list[str]:
        """Stubs that were resent while they were in the queue."""
        return [
            stub
            for stub in self.rows
            if self.answered(stub, "resender", "duplicate")
            > self.unanswered(stub) + self.sure[stub] + self.unsure[stub]
        ]

    def unexplained(self) -> list[str]:
        """Stubs that were stored again after anything but a flush, or with no answer expected."""
        return [
            stub
            for stub, ends in self.lives.ends.items()
            if any(end != "flushed" for end in ends[:-1])
            or not 0 <= self.unanswered(stub)
            <= self.answered(stub, "", "unknown", "duplicate")
        ]  # fmt: skip

    def overtaken(self) -> list[str]:
        """Stubs stored for the first time before an earlier one of their basis."""
        newest: dict[tuple[str, bytes], int] = defaultdict(int)
        found = []
        for stub in self.lives.order:
            row = self.rows.get(stub)
            if row is None or row.slot_basis is None:
                continue
            basis = (row.topic, bytes(row.slot_basis))
            if row.seq < newest[basis]:
                found.append(stub)
            newest[basis] = max(newest[basis], row.seq)
        return found

    def disturbed(self) -> list[str]:
        """Controls that did not come as they should: stored once, sent by the relay, in time."""
        return [
            stub
            for stub, order in self.orders.items()
            if order.kind in CONTROLS
            and (
                len(self.lives.ends.get(stub, ())) > 1
                or any(
                    self.answer_counts[stub, "resender", a]
                    for a in ("stored", "duplicate", "unknown")
                )
                or self.rows[stub].sends > 1
                or (order.kind == DELAYED and self.begun.get(stub, 0) < self.rows[stub].due_ms)
            )
        ]

    def unseen(self) -> list[str]:
        """Controls that the resend has not asked about, where it should have found them."""
        return [
            f"looked for {order.kind}"
            for stub, order in self.orders.items()
            if order.kind in LOOKS
            and self.looked[stub, LOOKS[order.kind][0]] < LOOKS[order.kind][1]
        ]

    def figures(self) -> dict[str, Any]:
        """Return the figures to print."""
        answers: Counter[str] = Counter()
        for (_, who, answer), count in self.answer_counts.items():
            answers[f"{who} {answer}"] += count
        looks: Counter[str] = Counter()
        for (_, at), count in self.looked.items():
            looks[str(at)] += count
        again = [stub for stub in self.rows if self.answered(stub, "resender")]
        ends = self.lives.ends
        return {
            "stubs": len(self.rows),
            "packed": sum(count == 1 for count in self.packed.values()),
            "runs": self.runs,
            "transactions": dict(self.fates),
            "rolled back stubs": len(self.undone),
            "sends": sum(self.answered(stub) for stub in self.rows),
            "counted": sum(row.sends for row in self.rows.values()),
            "uncounted sure": self.sure.total(),
            "uncounted at most": (self.sure + self.unsure).total(),
            "confirmed before counted": sum(row.sends == 0 for row in self.rows.values()),
            "stores": self.lives.stores,
            "stored again": sum(len(one) - 1 for one in ends.values()),
            "taken by flushes": self.lives.flushes,
            "stubs resent": len(again),
            "answers": dict(sorted(answers.items())),
            "looks": dict(looks),
            "controls": dict(Counter(
                one.kind for one in self.orders.values() if one.kind in CONTROLS
            )),
        }  # fmt: skip

    def books(self, planned: Iterable[str], more: Counter[str], left: int, dead: int) -> Books:
        """The verdict. `more`: what else was done; `left`, `dead`: messages in Redis."""
        ends = self.lives.ends
        good = {(stub, order.key) for stub, order in self.orders.items()}
        fired = self.fired + more
        hit = sum(bool(count) for count in self.lives.flushes)
        wanted = Counter(planned)
        never = sorted((wanted - fired).elements())
        never += [f"a flush that took messages: {hit}"] if hit < wanted["flush"] else []
        wrong: dict[str, list[Any]] = {
            "lost": [
                stub
                for stub, order in self.orders.items()
                if not self.packed[stub, order.key] or stub not in ends or stub not in self.rows
            ] + sorted(self.asserted - set(self.orders)),
            "repeated": [one for one, count in self.packed.items() if count > 1],
            "ghosts": [one for one in self.packed if one not in good]
            + [stub for stub in ends if stub not in self.orders]
            + [stub for stub in self.rows if stub not in self.orders]
            + sorted(self.undone & (set(self.orders) | set(ends))),
            "open": [one.id for one in self.rows.values() if one.status != CONFIRMED],
            "notes": self.notes,
            "miscounted": self.miscounted(),
            "needless": self.needless(),
            "unexplained": self.unexplained(),
            "disturbed": self.disturbed(),
            "overtaken": self.overtaken(),
            "left": [left] if left else [],
            "dead": [dead] if dead else [],
        }  # fmt: skip
        return Books(wrong, fired, never + self.unseen(), self.figures())
