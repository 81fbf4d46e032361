"""The rounds of a heartbeat, without a process and without Redis."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rmq.errors import RMQError, StorageError, Unavailable
from rmq.kernel.core.keys import SlotKeys, wake_channel
from rmq.kernel.delivery.claim import Claim
from rmq.kernel.delivery.inner_delivery import BatchOrigin, InnerDelivery
from rmq.worker.heartbeat import renewer as module
from rmq.worker.heartbeat.leases import WorkerMemory
from rmq.worker.heartbeat.memory import LEASE_WORDS, NUMBER_SHIFT, SLOTS_MAX
from rmq.worker.heartbeat.renewer import PAGE, RETRY_S, Heartbeat, RenewedTopic, is_stopped
from tests.patience import wait_for

LEASE_MS = 30_000


class Answers:
    """A transport that answers as it was told, and remembers what was asked."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.replies: list[Any] = []
        self.error: RMQError | None = None

    def run(self, flow: Any) -> Any:
        commands = next(flow).commands
        self.calls += [(each.script.name, each.keys[-1], list(each.args)) for each in commands]
        if self.error is not None:
            raise self.error
        replies = [self.replies.pop(0) for _ in commands]
        pairs = zip(commands, replies, strict=True)
        values = [r if isinstance(r, RMQError) else each.parse(r) for each, r in pairs]
        with pytest.raises(StopIteration) as ended:
            flow.send(values)
        return ended.value.value


def keys(topic: int, slot: int) -> SlotKeys:
    return SlotKeys("rmq", f"topic{topic}", slot)


class Scene:
    """A heartbeat of two topics, with the worker's side of its memory."""

    def __init__(self) -> None:
        self.memory = WorkerMemory([LEASE_MS, 6000], 2, 4)
        self.answers = Answers()
        self.warnings: list[str] = []
        topics = [RenewedTopic("rmq", f"topic{number}") for number in range(2)]
        self.heartbeat = Heartbeat(
            self.memory.shared, self.answers, topics, self.warnings.append  # type: ignore[arg-type]
        )  # fmt: skip

    def lease(self, topic: int, slot: int, number: int, held: int) -> int:
        shared, place = self.memory.shared, topic * SLOTS_MAX + slot
        shared.words[shared.leases_at + place * LEASE_WORDS] = number << NUMBER_SHIFT | held
        shared.words[shared.topics_at + topic * 2] = SLOTS_MAX
        return place

    def delivery(self, place: int, id: bytes = bytes(16), claim: bytes = b"") -> InnerDelivery:
        lease: Any = SimpleNamespace(lease_index=place)
        made = InnerDelivery(BatchOrigin(keys(0, 0), 1, 16, 0.0, lease), id, 0.0, b"", 1, None)
        if claim:
            name, _, owner = claim.partition(b" ")
            made.claim = Claim(name, owner, LEASE_MS)
            self.memory.add_claim(made, place)
        return made

    def beat(self, *replies: Any) -> float:
        # A number is the reply of lease_renew in a slot without requests to cancel.
        self.answers.replies = [[r, 0] if isinstance(r, int) else r for r in replies]
        self.answers.calls.clear()
        pause = self.heartbeat.beat()
        assert not self.answers.replies
        return pause


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.memory.close()


def test_a_lease_that_holds_something_is_renewed_and_again_after_a_third(scene: Scene) -> None:
    place = scene.lease(0, 7, 41, held=100_000)

    pause = scene.beat(LEASE_MS)

    assert scene.answers.calls == [("lease_renew", keys(0, 7).queries, [b"", 41, LEASE_MS])]
    assert pause == 1.0  # a sixth of the shortest lease
    now = time.monotonic()
    assert now + 29 < scene.memory.shared.safe_until(place, 41) < now + 30
    scene.beat()
    scene.memory.shared.set_safe(place, 41, now + 19.9)
    scene.beat(LEASE_MS)


def test_lost_leases_are_not_renewed(scene: Scene) -> None:
    scene.memory.shared.set_lost(scene.lease(1, 2, 42, held=1), 42)

    scene.beat()


def test_a_lease_that_holds_nothing_is_renewed_for_a_minute(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = scene.lease(0, 1, 41, held=0)
    scene.beat(LEASE_MS)
    scene.memory.shared.set_safe(place, 41, time.monotonic())
    monkeypatch.setattr(module, "IDLE_S", 0.0)

    scene.beat()

    scene.lease(0, 1, 41, held=1)
    monkeypatch.setattr(module, "IDLE_S", 60.0)
    scene.beat(LEASE_MS)


def test_a_lease_that_is_gone_is_noted_as_lost(scene: Scene) -> None:
    place = scene.lease(1, 2, 42, held=1)

    scene.beat(0)

    assert scene.memory.shared.lost(place) == 42
    scene.beat()


def rounds(heartbeat: Heartbeat, *times: float) -> list[bool]:
    return [heartbeat.is_hung(now) for now in times]


def test_a_worker_that_makes_no_turn_for_too_long_hangs(scene: Scene) -> None:
    scene.memory.note_step(10.0)

    assert rounds(scene.heartbeat, 1000, 1005, 1010, 1011) == [False, False, False, True]
    scene.memory.note_step(10.0)
    assert rounds(scene.heartbeat, 1012, 1017, 1022) == [False, False, False]


def test_a_worker_that_shows_no_turns_may_hang_for_ever(scene: Scene) -> None:
    assert not any(rounds(scene.heartbeat, *range(0, 1000, 5)))


def test_time_in_which_the_heartbeat_did_not_run_either_does_not_count(scene: Scene) -> None:
    scene.memory.note_step(10.0)

    assert rounds(scene.heartbeat, 1000, 9000, 9001, 9005) == [False, False, False, False]


def test_nothing_is_renewed_when_the_worker_has_not_moved(scene: Scene) -> None:
    scene.lease(0, 7, 41, held=1)
    scene.memory.renew_until(time.monotonic() - 0.01)

    scene.beat()

    assert scene.memory.last_round() > 0
    scene.memory.renew_until(time.monotonic() + 10)
    scene.beat(LEASE_MS)


def test_a_renewal_without_an_answer_is_tried_again_soon(scene: Scene) -> None:
    place = scene.lease(0, 7, 41, held=1)
    scene.answers.error = Unavailable("refused")

    assert scene.beat() == RETRY_S

    assert scene.warnings == ["leases are not renewed just now: refused"]
    assert scene.memory.shared.safe_until(place, 41) == 0.0
    assert scene.memory.shared.lost(place) == 0
    scene.answers.error = None
    assert scene.beat(StorageError("BUSY")) == RETRY_S
    scene.beat(LEASE_MS)


def test_claims_are_renewed_every_third_and_lost_ones_noted(scene: Scene) -> None:
    memory = scene.memory
    first = scene.delivery(5, claim=b"shop:1 me")
    second = scene.delivery(SLOTS_MAX + 6, claim=b"shop:2 you")

    scene.beat(b"1", b"0")

    assert scene.answers.calls == [
        ("renew", keys(0, 5).claim_stem + b"shop:1", [LEASE_MS + 1000, b"me"]),
        ("renew", keys(1, 6).claim_stem + b"shop:2", [7000, b"you"]),
    ]
    assert not memory.is_claim_lost(first)
    assert memory.is_claim_lost(second)
    scene.beat()


def test_what_a_dead_worker_had_not_begun_is_released(scene: Scene) -> None:
    place = scene.lease(0, 7, 41, held=5)
    scene.lease(1, 2, 42, held=0)
    scene.memory.begin(scene.delivery(place, b"0123456789abcdef", b"shop:1 me"))
    scene.delivery(place, claim=b"shop:2 you")

    scene.answers.replies = [b"1", PAGE, 3, 0]
    scene.heartbeat.release_not_begun()

    wake = [wake_channel("rmq", f"topic{number}") for number in range(2)]
    begun_members = [b"", wake[0], 7, 41, PAGE, b"01234567bcdef"]
    assert scene.answers.calls == [
        ("unclaim", keys(0, 7).claim_stem + b"shop:2", [b"you"]),
        *[("lease_release", keys(0, 7).records, begun_members)] * 2,
        ("lease_release", keys(1, 2).records, [b"", wake[1], 2, 42, PAGE]),
    ]


def test_a_release_is_tried_until_redis_answers(scene: Scene) -> None:
    scene.lease(0, 7, 41, held=5)  # never renewed: its end is not in the shared memory
    scene.answers.replies = [StorageError("LOADING"), StorageError("LOADING"), 0]

    scene.heartbeat.release_until_expired(pause_s=0)

    assert [verb for verb, *_ in scene.answers.calls] == ["lease_release"] * 3


def test_a_release_is_given_up_when_the_leases_have_ended(scene: Scene) -> None:
    scene.lease(0, 7, 41, held=5)
    scene.memory.expect(0, 0)  # the topic's lease has no length
    scene.answers.replies = [StorageError("LOADING"), 0]

    scene.heartbeat.release_until_expired(pause_s=0)

    assert len(scene.answers.calls) == 1


def test_nothing_is_released_if_it_is_not_known_what_had_begun(scene: Scene) -> None:
    scene.lease(0, 7, 41, held=5)
    scene.memory.shared.words[2] = 1

    scene.heartbeat.release_not_begun()

    assert scene.answers.calls == []


def test_a_process_is_stopped_that_was_sent_sigstop_or_is_gone() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        assert not is_stopped(process.pid)
        os.kill(process.pid, signal.SIGSTOP)
        wait_for(lambda: is_stopped(process.pid), "it never stops")
        os.kill(process.pid, signal.SIGCONT)
    finally:
        process.kill()
        process.wait()
    assert is_stopped(process.pid)
