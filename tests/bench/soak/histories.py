"""Histories written by hand, step by step: a moment passes with each event."""

from __future__ import annotations

from typing import Any

from bench.soak.history import Event

STEP_NS = 10_000_000
LEASE_MS = 3_000
START_MS = 1_800_000_000_000


class Story:
    """A history; `at` is its time in ms from the start."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.at = 0

    def wait(self, ms: int) -> Story:
        self.at += ms
        return self

    def event(self, type: str, op: str, pid: int = 1, **facts: Any) -> Story:
        self.at += STEP_NS // 1_000_000
        wall = START_MS + self.at
        self.events.append(Event(type, op, self.at * 1_000_000, wall, pid, **facts))
        return self

    def send(self, number: int, answer: str = "ok", **facts: Any) -> Story:
        id = facts.pop("id", f"m{number}")
        facts = {"digest": f"d{number}", "producer": "p", "number": number} | facts
        self.event("invoke", "send", id=id, **facts)
        return self.event(answer, "send", id=id, slot=0) if answer else self

    def deliver(self, of: int, /, attempt: int = 1, pid: int = 2, **facts: Any) -> Story:
        id = facts.pop("id", f"m{of}")
        since = self.at * 1_000_000 + 1
        facts = {
            "digest": f"d{of}", "producer": "p", "number": of, "slot": 0, "since": since,
            "receipt": f"{id}:{attempt}", "until": START_MS + self.at + LEASE_MS,
        } | facts  # fmt: skip
        return self.event("ok", "deliver", pid, id=id, attempt=attempt, **facts)

    def settle(
        self, number: int, attempt: int = 1, answer: str = "ok", op: str = "ack", pid: int = 2
    ) -> Story:
        of = {"id": f"m{number}", "receipt": f"m{number}:{attempt}"}
        self.event("invoke", op, pid, **of)
        return self.event(answer, op, pid, **of) if answer else self

    def handle(self, number: int) -> Story:
        return self.event("ok", "handle", 2, id=f"m{number}")

    def whole(self, number: int) -> Story:
        return self.send(number).deliver(number).handle(number).settle(number)

    def fault(self, name: str = "kill-consumer", ms: int = 200) -> Story:
        self.event("invoke", "fault", name=name, target=2).wait(ms)
        return self.event("ok", "fault", name=name, target=2)

    def end(self, drain: str = "ok", control: str = "ok") -> Story:
        if control:
            self.event(control, "control", name="settle-first")
        return self.event(drain, "drain")


def sound(count: int = 4) -> Story:
    """A history in which nothing is wrong, but for its end."""
    story = Story().event("ok", "start", settings={"max_deliveries": 3, "seed": 7})
    for number in range(1000, 1000 + count):
        story.whole(number)
    return story.fault()
