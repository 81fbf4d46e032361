"""A hostile month in minutes: everything that a network, a server and handlers do, at once.

Two redis-servers stand behind one address, master and replica. Producers send through it, one by
one and in bursts that open many connections, and repeat a send with its id until it is answered.
Workers of three kinds run handlers that return, fail, hang beyond `max_runtime`, block their event
loop, or end their process. Meanwhile a seed decides when

    failover   the replica becomes master; old connections lead to a server that is read-only now
    strand     all connections become half-open: they stay, and pass nothing
    reset      all connections end at once
    hole       nothing passes for a while, new connections neither
    freeze     the master is stopped for a while
    cut        replies of some calls are lost after they were executed
    flush      the scripts are gone
    full       the master is at maxmemory for a while
    clock      the clock of the master steps forward or back, by less than the lease of a worker
    kill, stop, term   a worker dies, stands still beyond its lease, or is asked to stop

Topics of workers are resized all the time, by a command that is repeated until it is answered.
Two consumers without a worker pull messages through the same faults (`hostile_pull`).

`python -m tests.faults.hostile --seed 1 --seconds 300` runs it by hand. A run is judged by
`worker_account`: nothing lost, and a cause for every delivery beyond the first.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import random
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import redis

import rmq
from bench.soak.proxy import Proxy
from tests.conftest import any_binary
from tests.faults.hostile_pull import REPEATED, Pull
from tests.faults.preload import Clock
from tests.faults.storm import Played, Watch, insist
from tests.faults.worker_account import SLACK_NS, Account, account, events
from tests.faults.worker_scene import KINDS, Child, Scene
from tests.patience import wait_for
from tests.servers import Server

LEASE_S, MAX_RUNTIME_S, HANG_S = 4.0, 1.0, 8.0
CLIENT = {"timeout": 1.0, "retry_for": 10.0}
WORKER = {"grace": 3, "watchdog": 6}
# A worker gives a delivery back, and learns that it has when the reply comes: after a fault of the
# network (3 s at most) and a timeout, in the worst case. Only then is the handler told.
TOLD_NS = SLACK_NS + 4_000_000_000
BURST = 60  # sends of one asyncio.gather
FAULTS_EACH_S = 1 / 4  # at least
JOIN_S = 60.0
CLOCK_MS = 1500  # a server's clock is off by so much at most
SLOTS = (2, 4, 8)
NETWORK = ("failover", "strand", "reset", "hole", "freeze", "cut", "flush", "full", "clock")
PROCESS = ("kill", "stop", "term")


class Pair:
    """A master and its replica behind one address, each with a clock of its own."""

    def __init__(self, binary: str, folder: Path) -> None:
        self.clocks: dict[Server, Clock] = {}
        self.master, self.replica = (self._server(binary, folder / name) for name in "ab")
        self._follow()
        self.front = Proxy(self.master.port)
        self.url = self.front.url

    def _server(self, binary: str, folder: Path) -> Server:
        folder.mkdir()
        clock = Clock(folder)
        made = Server(clock.program(binary))
        self.clocks[made] = clock
        return made

    def _follow(self) -> None:
        with self.replica.raw() as raw:
            raw.replicaof("127.0.0.1", str(self.master.port))
            wait_for(
                lambda: raw.info("replication")["master_link_status"] == "up",
                "the replica is in sync",
            )

    def failover(self, late_s: float) -> None:
        """Swap their roles without losing a write; the address follows `late_s` later."""
        with self.master.raw(socket_timeout=10) as old, self.replica.raw(socket_timeout=10) as new:
            old.execute_command("FAILOVER", "TO", "127.0.0.1", self.replica.port, "TIMEOUT", 5000)
            wait_for(
                lambda: old.info("replication")["master_failover_state"] == "no-failover",
                "the failover has ended",
            )
            if new.info("replication")["role"] != "master":
                return  # it gave up: the replica did not catch up in time
        self.master, self.replica = self.replica, self.master
        time.sleep(late_s)
        self.front.target = self.master.port

    def stop(self) -> None:
        self.front.close()
        self.master.stop()
        self.replica.stop()


class Hostile:
    """A run.

    Args:
        pair: its servers will be hurt.
        folder: for the histories.
        seed: decides everything that is left to chance.
        mutant: how the workers are broken, for a control.
    """

    def __init__(self, pair: Pair, folder: Path, seed: int, mutant: str = "") -> None:
        self.pair = pair
        self.mutant = mutant
        self.fired: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()  # of sends that had to be repeated
        self.errors: list[str] = []
        self.exits: Counter[int] = Counter()
        self._seed = seed
        self._over = threading.Event()  # no more messages and faults
        self._drained = threading.Event()
        self._stack = contextlib.ExitStack()
        self.scenes = [
            self._stack.enter_context(
                Scene(self, f"hostile-{kind}", folder / kind, kind, lease=LEASE_S)  # type: ignore[arg-type]
            )
            for kind in KINDS
        ]
        self.pulls = [Pull(self.url, "at_least_once"), Pull(self.url, "at_most_once")]
        self._locks = {scene: threading.Lock() for scene in self.scenes}
        self._workers: dict[Scene, list[Child]] = {}
        self._threads: list[threading.Thread] = []
        self._watch = Watch(self._status)

    @property
    def url(self) -> str:
        return self.pair.url

    def run(self, seconds: float, messages: int = 0) -> list[Account]:
        """Play for so long, heal everything, wait for the drain, and judge each kind.

        It goes on until a fault has come for each four seconds, and so many messages are sent.
        """
        try:
            self._play(seconds, messages)
            return [self._judged(scene) for scene in self.scenes]
        finally:
            self._over.set()
            self._drained.set()
            self._stack.close()
            for thread in self._threads:
                thread.join(JOIN_S)

    def _play(self, seconds: float, messages: int) -> None:
        # The thread that starts the workers outlives them: Linux kills them as it ends.
        self._start("processes", self._processes)
        parts: dict[str, Callable[[random.Random], None]] = {
            "network": self._network,
            "resizes": self._resizes,
        }
        for scene in self.scenes:
            parts[f"produce {scene.kind}"] = functools.partial(self._produce, scene)
            parts[f"bursts {scene.kind}"] = functools.partial(self._bursts, scene)
        for pull in self.pulls:
            parts[f"produce {pull.mode}"] = functools.partial(pull.produce, self._over)
            parts[f"consume {pull.mode}"] = pull.consume
        threads = [self._start(name, part) for name, part in parts.items()]
        self._over.wait(seconds)
        self._watch.wait(
            lambda: (
                self._over.is_set()
                or (self.fired.total() >= seconds * FAULTS_EACH_S and self._sent() >= messages)
            ),
            lambda: (self.fired.total(), self._sent()),
        )
        self._over.set()
        self._watch.wait(
            lambda: not any(thread.is_alive() for thread in threads),
            lambda: (
                [thread.name for thread in threads if thread.is_alive()], self._sent(),
                [(len(one.history.answered), len(one.history.settled)) for one in self.pulls],
            ),
            lambda: insist(not self.errors, self.errors),
        )  # fmt: skip
        insist(not self.errors, self.errors)

    def _sent(self) -> int:
        return sum(len(scene.sent) for scene in self.scenes)

    def _status(self) -> str:
        found = [f"{scene.kind}: {scene._status()}" for scene in self.scenes]
        return f"faults {dict(self.fired)}, worker exits {dict(self.exits)}, {found}"

    def _start(self, name: str, part: Callable[[random.Random], None]) -> threading.Thread:
        return self._thread(name, self._guarded, name, part)

    def _thread(self, name: str, target: Callable[..., None], *args: Any) -> threading.Thread:
        thread = threading.Thread(target=target, args=args, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _guarded(self, name: str, part: Callable[[random.Random], None]) -> None:
        try:
            part(random.Random(f"{self._seed} {name}"))
        except BaseException as error:
            self.errors.append(f"{name}: {type(error).__name__}: {error}")
            self._over.set()

    def _judged(self, scene: Scene) -> Account:
        self._watch.wait(
            lambda: not self._held(scene),
            lambda: (scene.kind, self._held(scene), scene.log.stat().st_size, len(scene.children)),
            lambda: insist(not self.errors, self.errors),
        )
        return account(
            events(scene.log), scene.sent, scene.dead(), fired=scene.fired, slack_ns=TOLD_NS
        )

    def _held(self, scene: Scene) -> int:
        try:
            return scene.held()
        except rmq.StorageError:
            return 1  # the last fault is not over for this connection

    # --- workers ---------------------------------------------------------------------------------

    def _worker(self, scene: Scene) -> Child:
        child = scene.worker(
            mutant=self.mutant, concurrency=4, max_runtime=MAX_RUNTIME_S,
            worker=WORKER, client=CLIENT,
        )  # fmt: skip
        self._thread(f"see off {child.pid}", self._see_off, scene, child)
        return child

    def _see_off(self, scene: Scene, child: Child) -> None:
        """Note the moment at which a process ends: its runs end with it."""
        code = child.process.wait()
        self.exits[code] += 1
        scene.note("gone", child.pid, code=code)

    def _replace(self, scene: Scene) -> None:
        for place, child in enumerate(self._workers[scene]):
            if child.is_gone():
                self._workers[scene][place] = self._worker(scene)

    # --- resizes ---------------------------------------------------------------------------------

    def _resizes(self, rng: random.Random) -> None:
        """Resize one topic after the other; a resize that has begun is brought to its end."""
        with rmq.Client(self.url, **CLIENT) as client:
            while not self._over.wait(0.5 + rng.random()):
                scene, slots = rng.choice(self.scenes), rng.choice(SLOTS)
                self.fired["resize"] += self._resized(client, scene.topic.name, slots)

    def _resized(self, client: rmq.Client, name: str, slots: int) -> bool:
        """Whether it had another number of slots before."""
        while True:
            try:
                return client.admin.topic_resize(name, slots).before != slots
            except REPEATED as error:
                self._repeated(error)

    # --- producers -------------------------------------------------------------------------------

    def _next(self, scene: Scene, rng: random.Random) -> tuple[dict[str, Any], dict[str, Any]]:
        """The next message: body and options."""
        do: tuple[Any, ...] = ("quick",)
        chance = rng.random()
        if chance < 0.01:
            do = ("hang", HANG_S, MAX_RUNTIME_S)
        elif chance < 0.013:
            do = ("block", HANG_S, MAX_RUNTIME_S)
        elif chance < 0.03:
            do = ("fail",)
        elif chance < 0.032:
            do = ("exit", 1)
        options: dict[str, Any] = {}
        if scene.kind != "ordered":
            if rng.random() < 0.2:
                options["delay"] = rng.random() * 2
            if rng.random() < 0.3:
                options["priority"] = rng.randint(20, 900)
        with self._locks[scene]:
            number = len(scene.sent)
            scene.sent.append(number)
        return {"n": number, "do": list(do), "again": ["quick"]}, options

    def _repeated(self, error: rmq.RMQError) -> None:
        self.outcomes[type(error).__name__] += 1
        time.sleep(0.05)

    def _produce(self, scene: Scene, rng: random.Random) -> None:
        with rmq.Client(self.url, **CLIENT) as client:
            topic = client.topic(scene.topic.name)
            while not self._over.is_set():
                body, options = self._next(scene, rng)
                id: rmq.MessageId | None = None
                while True:
                    try:
                        id = id or topic.new_id()
                        topic.send(body, id=id, **options)
                        break
                    except REPEATED as error:
                        self._repeated(error)
                time.sleep(0.02)

    def _bursts(self, scene: Scene, rng: random.Random) -> None:
        asyncio.run(self._bursts_async(scene, rng))

    async def _bursts_async(self, scene: Scene, rng: random.Random) -> None:
        async with rmq.AsyncClient(self.url, **CLIENT) as client:
            topic = client.topic(scene.topic.name)
            while not self._over.is_set():
                messages = [self._next(scene, rng) for _ in range(BURST)]
                await asyncio.gather(*(self._send(topic, *message) for message in messages))
                await asyncio.sleep(1 + rng.random())  # the connections lie idle meanwhile

    async def _send(
        self, topic: rmq.AsyncTopic, body: dict[str, Any], options: dict[str, Any]
    ) -> None:
        id: rmq.MessageId | None = None
        while True:
            try:
                id = id or await topic.new_id()
                await topic.send(body, id=id, **options)
                return
            except REPEATED as error:
                self.outcomes[type(error).__name__] += 1
                await asyncio.sleep(0.05)

    # --- faults ----------------------------------------------------------------------------------

    def _network(self, rng: random.Random) -> None:
        while not self._over.wait(0.5 + rng.random() * 2):
            what = rng.choice(NETWORK)
            since = time.monotonic_ns()
            getattr(self, f"_{what}")(rng)
            self.fired[what] += 1
            for scene in self.scenes:
                scene.redis_fault(since)

    def _full(self, rng: random.Random) -> None:
        with self.pair.master.raw() as raw:
            raw.config_set("maxmemory", 1)
            time.sleep(0.5 + 2 * rng.random())
            raw.config_set("maxmemory", 0)

    def _clock(self, rng: random.Random) -> None:
        clock = self.pair.clocks[self.pair.master]
        offset_ms = rng.randint(-CLOCK_MS, CLOCK_MS)
        for scene in self.scenes:
            scene.note("clock", ahead=offset_ms)
        clock.step_to(offset_ms)
        with self.pair.master.raw() as raw:
            before = time.time_ns() // 1000
            seconds, us = raw.time()
            after = time.time_ns() // 1000
        stepped = seconds * 1_000_000 + us - offset_ms * 1000
        insist(before <= stepped + 1 and stepped <= after, (before, stepped, after))

    def _failover(self, rng: random.Random) -> None:
        self.pair.failover(rng.random())

    def _strand(self, rng: random.Random) -> None:
        self.pair.front.strand()

    def _reset(self, rng: random.Random) -> None:
        self.pair.front.reset()

    def _hole(self, rng: random.Random) -> None:
        self.pair.front.hole = True
        time.sleep(0.5 + 2 * rng.random())
        self.pair.front.hole = False

    def _freeze(self, rng: random.Random) -> None:
        master = self.pair.master
        master.signal(signal.SIGSTOP)
        time.sleep(0.5 + 2 * rng.random())
        master.signal(signal.SIGCONT)

    def _cut(self, rng: random.Random) -> None:
        verb = rng.choice(["send", "prepare", "ack", "nack", "release", "extend"])
        self.pair.front.cut(verb, times=rng.randint(1, 5))

    def _flush(self, rng: random.Random) -> None:
        with contextlib.suppress(redis.RedisError), self.pair.master.raw() as raw:
            raw.script_flush()

    def _processes(self, rng: random.Random) -> None:
        for scene in self.scenes:
            self._workers[scene] = [self._worker(scene) for _ in range(2)]
        while not self._drained.wait(0.3 + rng.random()):
            for scene in self.scenes:
                self._replace(scene)
            if self._over.is_set() or rng.random() > 0.4:
                continue
            scene = rng.choice(self.scenes)
            child = rng.choice(self._workers[scene])
            if child.is_gone():
                continue
            what = rng.choice(PROCESS)
            self.fired[what] += 1
            scene.note(what, child.pid)
            if what == "kill":
                child.process.kill()
                child.process.wait()
            elif what == "term":
                child.process.terminate()
            else:
                child.process.send_signal(signal.SIGSTOP)
                time.sleep(LEASE_S + rng.random() * 2)
                scene.note("cont", child.pid)
                child.process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def pair(binary: str) -> Iterator[Pair]:
    """Two servers behind one address."""
    with tempfile.TemporaryDirectory() as folder:
        made = Pair(binary, Path(folder))
        try:
            yield made
        finally:
            made.stop()


def played(servers: Pair, folder: Path, seed: int, seconds: float) -> Played:
    """Play a run, and insist that nothing is lost and every duplicate has a cause."""
    begun = time.monotonic()
    run = Hostile(servers, folder, seed)
    accounts = run.run(seconds)
    told = figures(run, accounts, time.monotonic() - begun)
    for one in accounts:
        found = (told, one.lost, one.unexplained, one.overlaps, one.zombies)
        insist(one.state == "valid" and not one.lost and not one.unexplained, found)
    for pull in run.pulls:
        verdict = pull.verdict(run.fired.total())
        insist(verdict.state == "valid" and not verdict.duplicates, (told, verdict))
        insist(pull.leases_lost == 0, (told, pull.leases_lost))
    never = Counter(name for name in (*NETWORK, *PROCESS, "resize") if not run.fired[name])
    return Played(told, never)


def figures(run: Hostile, accounts: list[Account], seconds: float) -> str:
    """A run in some lines."""
    lines = [f"{scene.kind}: {one}" for scene, one in zip(run.scenes, accounts, strict=True)]
    lines += [
        f"{one.mode}: {one.verdict(run.fired.total())}; {one.unknown} unknown" for one in run.pulls
    ]
    lines.append(f"faults {dict(run.fired)}; sends repeated {dict(run.outcomes)}; worker exits")
    lines[-1] += f" {dict(run.exits)}; {seconds:.0f} s"
    return "\n".join(lines)


def main() -> int:
    """Run it by hand."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    words.add_argument("--seed", type=int, default=1)
    words.add_argument("--seconds", type=float, default=300)
    words.add_argument("--mutant", default="")
    words.add_argument("--folder", default="", help="keep the histories there")
    asked = words.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch, pair(any_binary()) as servers:
        folder = Path(asked.folder or scratch)
        folder.mkdir(parents=True, exist_ok=True)
        run = Hostile(servers, folder, asked.seed, asked.mutant)
        accounts = run.run(asked.seconds)
        print(f"seed {asked.seed}\n{figures(run, accounts, time.monotonic() - begun)}")
        for one in accounts:
            print(one.lost[:10], one.unexplained[:10], one.overlaps[:10], one.zombies[:10])
    states = [
        *(one.state for one in accounts),
        *(one.verdict(run.fired.total()).state for one in run.pulls),
    ]
    return int(any(state != "valid" for state in states))


if __name__ == "__main__":
    raise SystemExit(main())
