"""How many files and functions of rmq/ a warm call goes through: a reader must follow them all."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import rmq
from tests.integration.working import wait_for

HOME = f"{Path(rmq.__file__).parent}/"
STAGES = ("rmq-fetch", "rmq-run", "rmq-settle")  # threads of a worker that a message goes through
TIMES = 5  # the shortest of so many paths; some calls have a periodic duty on top

# (files, functions) of a sync client on one server, with JSON and without interceptors. A change
# that raises a figure says why here.
LIMITS = {
    "send": (10, 25),
    "receive": (12, 36),
    "ack": (11, 31),
    "handled": (22, 70),
}

Function = tuple[str, str, int]  # file below rmq/, name, line


class Watch:
    """Notes the functions of rmq/ that run while it is on, in threads of some names.

    Comprehensions are no functions: newer Pythons run them in place.
    """

    def __init__(self, threads: tuple[str, ...]) -> None:
        self._threads = threads
        self.seen: set[Function] = set()
        self.is_on = False

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if not self.is_on or event != "call" or not code.co_filename.startswith(HOME):
            return
        is_comprehension = code.co_name in ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")
        if threading.current_thread().name.startswith(self._threads) and not is_comprehension:
            self.seen.add((code.co_filename[len(HOME) :], code.co_name, code.co_firstlineno))


@contextmanager
def watching(*threads: str) -> Iterator[Watch]:
    """Watch this thread, and threads that start in the block."""
    watch = Watch(threads)
    threading.setprofile(watch.note)
    sys.setprofile(watch.note)
    try:
        yield watch
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def shortest(
    watch: Watch, call: Callable[[], object], before: Callable[[], object]
) -> set[Function]:
    """Return the functions of the shortest path of a call; `before` is not watched."""
    paths = []
    for _ in range(TIMES):
        before()
        watch.seen = set()
        watch.is_on = True
        call()
        watch.is_on = False
        paths.append(watch.seen)
    return min(paths, key=len)


def sizes(path: set[Function]) -> tuple[int, int]:
    return len({file for file, _, _ in path}), len(path)


def described(path: set[Function]) -> str:
    return "\n".join(f"{file}:{line} {name}" for file, name, line in sorted(path))


def check(name: str, path: set[Function]) -> None:
    (files, functions), (files_most, functions_most) = sizes(path), LIMITS[name]
    print(f"{name}: {files} files, {functions} functions\n{described(path)}")
    assert files <= files_most, described(path)
    assert functions <= functions_most, described(path)


def test_the_paths_of_a_send_a_receive_and_an_ack(client: rmq.Client, name: str) -> None:
    topic = client.topic(name)
    main = threading.current_thread().name
    with topic.consumer() as consumer, watching(main) as watch:

        def settled() -> None:
            for delivery in consumer.receive():
                delivery.ack()

        def received() -> None:
            topic.send({"n": 1})

        deliveries: list[Any] = []
        for _ in range(3):
            received()
            settled()
        check("send", shortest(watch, lambda: topic.send({"n": 1}), settled))
        settled()
        check("receive", shortest(watch, lambda: deliveries.extend(consumer.receive()), received))
        for delivery in deliveries:
            delivery.ack()

        def taken() -> None:
            topic.send({"n": 1})
            deliveries[:] = consumer.receive()

        check("ack", shortest(watch, lambda: deliveries[0].ack(), taken))


def test_the_path_of_a_handled_message(client: rmq.Client, name: str) -> None:
    topic, handled = client.topic(name), []

    @topic.handler()
    def handle(body: Any) -> None:
        handled.append(body)

    def settled() -> bool:
        return worker.counts()[name]["ack"] == len(handled) and len(handled) == sent

    def send() -> None:
        nonlocal sent
        sent += 1
        topic.send({"n": 1})
        wait_for(settled)

    sent = 0
    worker = rmq.Worker(client, heartbeat="thread")
    with watching(*STAGES) as watch, worker:
        for _ in range(3):
            send()
        check("handled", shortest(watch, send, lambda: None))
