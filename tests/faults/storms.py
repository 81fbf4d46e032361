"""All storms, small: one seed takes seconds. `seeds` plays many seeds of each.

What a seed decides is in the storm's own module; the tests play longer runs of the same.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path

import rmq
from bench.soak.proxy import between
from tests.acl import tenants
from tests.conftest import any_binary
from tests.databases import Postgres, fresh
from tests.faults import (
    bank_scene,
    bank_storm,
    batches_storm,
    cancels_storm,
    events_storm,
    follow_ups_storm,
    groups_storm,
    history_storm,
    hostile,
    interrupts,
    lost_acks,
    outbox_scene,
    outbox_storm,
    results_storm,
    senders,
    steps_storm,
    test_resize,
    test_resize_workers,
    test_schedulers,
)
from tests.faults.load import Load
from tests.faults.storm import END_S, Played, insist
from tests.forkserver import Forked
from tests.servers import Server

TRANSFERS, STUBS, PACE_S = 200, 120, 0.01
HOSTILE_S, SOAK_MINUTES = 4.0, 0.1
DOUBTFUL = 7  # its exit code without a control: nothing is found, and that proves little
LINES_S, LINES_EACH_S = 1.5, 0.05
AOF = ("--appendfsync", "always", "--auto-aof-rewrite-percentage", "0")


class Stage:
    """Servers and names for storms that are played one after another.

    One PostgreSQL and one Redis serve all; a storm that reads the files of its Redis has its own.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._stack = ExitStack()

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def name(self) -> str:
        """A name that no other storm has."""
        return f"storm{next(self._numbers)}-{os.getpid()}"

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """A directory for one storm."""
        made = Path(tempfile.mkdtemp(prefix="rmq-storm-"))
        try:
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)

    @cached_property
    def postgres(self) -> Postgres:
        """A PostgreSQL whose commits are on the disk."""
        made = Postgres(durable=True)
        self._stack.callback(made.stop)
        return made

    @cached_property
    def redis(self) -> Server:
        """A Redis that keeps what it has answered."""
        made = Server(any_binary(), aof=True)
        self._stack.callback(made.stop)
        return made

    @contextmanager
    def own_redis(self, *options: str) -> Iterator[Server]:
        """A Redis for one storm, which keeps what it has answered."""
        made = Server(any_binary(), *options, aof=True)
        try:
            yield made
        finally:
            made.stop()


def bank(stage: Stage, seed: int) -> Played:
    """Transfers; the seed chooses the way in which each is kept once."""
    rng = random.Random(seed)
    way = rng.choice(sorted(bank_storm.WAYS))
    with fresh(stage.postgres) as database, stage.folder() as folder, bank_scene.opened(
        stage.redis, database, stage.name(), folder, (way,), bank_storm.LEASE_S,
        bank_storm.SLOTS,
    ) as scene:  # fmt: skip
        return bank_storm.played(scene, rng, TRANSFERS, kills=1)


def outbox(stage: Stage, seed: int) -> Played:
    """Orders with messages in their transactions."""
    with (
        fresh(stage.postgres) as database,
        stage.folder() as folder,
        stage.own_redis(*AOF) as redis,
        outbox_scene.opened(redis, database, stage.name(), folder) as shop,
    ):
        return outbox_storm.played(shop, random.Random(seed), STUBS, 1, PACE_S)


def resize(stage: Stage, seed: int) -> Played:
    """Consumers of a topic that is resized; at odd seeds Redis is killed meanwhile."""
    with stage.folder() as folder, rmq.Client(stage.redis.url, retry_for=30) as client:
        return test_resize.played(
            client, stage.redis, stage.name(), folder / "log", random.Random(seed), bool(seed % 2)
        )


def resize_workers(stage: Stage, seed: int) -> Played:
    """Workers of a topic that is resized; at odd seeds Redis is away for a second."""
    with stage.folder() as folder:
        rng, gone_s = random.Random(seed), float(seed % 2)
        return test_resize_workers.played(stage.redis, stage.name(), folder / "log", rng, gone_s)


def schedulers(stage: Stage, seed: int) -> Played:
    """Schedulers of a hundred schedules."""
    with stage.folder() as folder, rmq.Client(stage.redis.url, retry_for=30) as client:
        return test_schedulers.played(
            stage.redis, client, stage.name(), folder, random.Random(seed)
        )


def everything(stage: Stage, seed: int) -> Played:
    """A hostile run: failovers, a line that fails, handlers that hang, workers that die."""
    with stage.folder() as folder, hostile.pair(any_binary()) as servers:
        found = hostile.played(servers, folder, seed, HOSTILE_S)
        return Played(found.figures, Counter())  # so short a run has few of the faults


def soak(stage: Stage, seed: int) -> Played:
    """`python -m bench.soak`, without its controls."""
    with stage.folder() as folder:
        words = "--history", folder / "history.jsonl", "--seed", seed, "--minutes", SOAK_MINUTES
        process = Forked(
            "bench.soak.command", "run", *map(str, words), "--json", "--no-controls", "--every",
            "1s", stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        out, err = process.communicate(timeout=END_S)
        insist(process.returncode in (0, DOUBTFUL), (process.returncode, out, err))
        said = json.loads(out)
        insist(not any(said["findings"].values()) and said["counts"]["acked"], said)
        return Played(f"{said['counts']}, {len(said['faults'])} faults", Counter())


def lines(stage: Stage, seed: int) -> Played:
    """A producer and a consumer whose connections, replies and scripts are lost."""
    rng = random.Random(seed)
    server, fired = stage.redis, Counter[str]()
    kill = ("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    with between(server.port) as proxy, server.raw() as raw:
        faults: dict[str, Callable[[], object]] = {
            "flush": raw.script_flush,
            "kill": lambda: raw.execute_command(*kill),
            "reset": proxy.reset,
            "cut": lambda: proxy.cut(rng.choice(["send", "prepare", "ack"])),
        }
        with Load(proxy.url, stage.name(), slots=2, is_async=rng.random() < 0.5) as load:
            until = time.monotonic() + LINES_S
            while time.monotonic() < until or fired.total() < len(faults):
                name = rng.choice(sorted(faults))
                faults[name]()
                fired[name] += 1
                time.sleep(rng.uniform(0, 2 * LINES_EACH_S))
            load.drain()
    verdict = load.history.verdict(fired=fired.total())
    insist(verdict.state == "valid" and not verdict.duplicates, (verdict, fired))
    return Played(f"{verdict}; {dict(fired)}", Counter())


def many_senders(stage: Stage, seed: int) -> Played:
    """Tasks and threads that send and settle at once; at odd seeds a replica takes over."""
    rng = random.Random(seed)
    if not seed % 2:
        return senders.killed(stage.redis, stage.name(), rng)
    with hostile.pair(any_binary()) as servers:
        return senders.failed_over(servers, stage.name(), rng)


def groups(stage: Stage, seed: int) -> Played:
    """Groups in order and others, everything dies, and they are resized."""
    with stage.own_redis(*AOF) as redis, stage.folder() as folder:
        store = groups_storm.Store(redis.url, lambda: [redis], None)
        return groups_storm.insisted(store, folder, seed)


def acks_lost(stage: Stage, seed: int) -> Played:
    """A replica is promoted that lacks the last acks, or a server starts from an older file."""
    failovers = list(lost_acks.FAILOVERS)
    failover = failovers[seed % len(failovers)]
    return lost_acks.played(any_binary(), stage.name(), seed, failover)


def many_tenants(stage: Stage, seed: int) -> Played:
    """Users of every role write junk beside a topic that is used."""
    return tenants.played_storm(stage.redis, stage.name(), random.Random(seed))


def calls_interrupted(stage: Stage, seed: int) -> Played:
    """Threads and signal handlers are interrupted in the middle of calls of one client."""
    return interrupts.played(stage.redis.url, stage.name(), seed)


def cancels(stage: Stage, seed: int) -> Played:
    """Messages that are cancelled; the seed chooses a server, Sentinel or a Cluster."""
    place = follow_ups_storm.PLACES[seed % len(follow_ups_storm.PLACES)]
    with stage.folder() as folder:
        return cancels_storm.played(place, folder, stage.name(), random.Random(seed))


def batches(stage: Stage, seed: int) -> Played:
    """Batches with callbacks; the seed chooses a server, Sentinel or a Cluster."""
    place = follow_ups_storm.PLACES[seed % len(follow_ups_storm.PLACES)]
    with stage.folder() as folder:
        return batches_storm.played(place, folder, stage.name(), random.Random(seed))


def events(stage: Stage, seed: int) -> Played:
    """Messages that wait for events; the seed chooses a server, Sentinel or a Cluster."""
    place = follow_ups_storm.PLACES[seed % len(follow_ups_storm.PLACES)]
    with stage.folder() as folder:
        return events_storm.played(place, folder, stage.name(), random.Random(seed))


def celery(stage: Stage, seed: int) -> Played:
    """Workers of Celery; the seed chooses a server, Sentinel or a Cluster."""
    from tests.celery import storm  # needs the extra celery

    place = follow_ups_storm.PLACES[seed % len(follow_ups_storm.PLACES)]
    with stage.folder() as folder:
        return storm.played(place, folder, stage.name(), random.Random(seed))


def follow_ups(stage: Stage, seed: int) -> Played:
    """Chains of follow-ups; the seed chooses a server, Sentinel or a Cluster."""
    place = follow_ups_storm.PLACES[seed % len(follow_ups_storm.PLACES)]
    with stage.folder() as folder:
        return follow_ups_storm.played(place, folder, stage.name(), random.Random(seed))


def dead_letters(stage: Stage, seed: int) -> Played:
    """Copies of dead letters, and rejections with follow-ups; the seed chooses what, and where."""
    kinds = list(itertools.product(follow_ups_storm.PLACES, ("dead_to", "dead_to", "reject")))
    place, how = kinds[seed % len(kinds)]
    with stage.folder() as folder:
        return follow_ups_storm.played(place, folder, stage.name(), random.Random(seed), how)


def results(stage: Stage, seed: int) -> Played:
    """Results are compared with the queue; the seed chooses one of five kinds of Redis."""
    place = results_storm.PLACES[seed % len(results_storm.PLACES)]
    with stage.folder() as folder:
        return results_storm.played(place, folder, stage.name(), random.Random(seed))


def steps(stage: Stage, seed: int) -> Played:
    """Handlers with steps and cursors; the seed chooses where, and each fourth has the ledger."""
    rng = random.Random(seed)
    with stage.folder() as folder:
        if seed % 4 == 0:
            with fresh(stage.postgres) as database:
                return steps_storm.played("one", folder, stage.name(), rng, database)
        place = follow_ups_storm.PLACES[seed % len(follow_ups_storm.PLACES)]
        return steps_storm.played(place, folder, stage.name(), rng)


def history(stage: Stage, seed: int) -> Played:
    """Acks of every kind with a history; the seed chooses where, and how small its limits are."""
    place = follow_ups_storm.PLACES[seed % len(follow_ups_storm.PLACES)]
    with stage.folder() as folder:
        return history_storm.played(
            place, folder, stage.name(), random.Random(seed), small=seed % 2 == 0
        )


STORMS: dict[str, Callable[[Stage, int], Played]] = {
    "bank": bank,
    "outbox": outbox,
    "resize": resize,
    "resize-workers": resize_workers,
    "schedulers": schedulers,
    "hostile": everything,
    "soak": soak,
    "lines": lines,
    "senders": many_senders,
    "groups": groups,
    "lost-acks": acks_lost,
    "tenants": many_tenants,
    "interrupts": calls_interrupted,
    "follow-ups": follow_ups,
    "dead-letters": dead_letters,
    "cancels": cancels,
    "results": results,
    "steps": steps,
    "history": history,
    "batches": batches,
    "events": events,
    "celery": celery,
}
