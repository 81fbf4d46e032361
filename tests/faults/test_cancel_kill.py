"""kill -9 of a worker whose message is cancelled, and a failover that loses the request."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

import rmq
from rmq.kernel.transport.lua import script_loader
from rmq.worker.receiving import fetcher
from tests.conftest import any_binary
from tests.faults import lost_acks
from tests.faults.worker_scene import Scene, stages
from tests.patience import PATIENCE_S, wait_for
from tests.property.mutants import loader
from tests.servers import Server

KINDS = ("sync", "async", "batch")


def stats_of(scene: Scene) -> dict[str, int]:
    found: dict[str, int] = scene.client.admin.stats(scene.topic.name)
    return found


def killed_while_cancelled(scenes: list[Scene], is_stopped: bool) -> None:
    """Kill the worker of each scene after a request to cancel the message that it runs."""
    for scene in scenes:
        scene.send(1, do=("hold", 60))
        scene.worker(concurrency=1, prefetch=8)
    for scene in scenes:
        scene.seen("deliver", n=0)
        (child,) = scene.children
        if is_stopped:
            child.stop()  # it never hears of the request
        assert scene.topic.cancel(scene.ids[0], running=True) == "requested"
        child.kill()


@pytest.mark.parametrize("is_stopped", [True, False])
def test_message_of_a_killed_worker_is_cancelled_and_never_delivered_again(
    server: Server, name: str, tmp_path: Path, is_stopped: bool
) -> None:
    with stages(server, name, tmp_path, KINDS, slots=1, lease=2) as scenes:
        killed_while_cancelled(scenes, is_stopped)
        for scene in scenes:
            scene.send(1)
            scene.worker()
        for scene in scenes:
            scene.seen("done", n=1)
            wait_for(lambda scene=scene: not stats_of(scene)["in_flight"], scene.how_it_stands)
            stats = stats_of(scene)
            assert (stats["cancelled"], stats["dead"], stats["records"]) == (1, 0, 0)
            assert len(scene.events("deliver", n=0)) == 1


@pytest.mark.parametrize("ends_before", [True, False])
def test_request_that_a_failover_loses_costs_no_retry(
    name: str, monkeypatch: pytest.MonkeyPatch, ends_before: bool
) -> None:
    """The message ends as cancelled at the old master, or not; the new one has it in flight."""
    monkeypatch.setattr(fetcher, "COMPARE_S", lost_acks.COMPARE_S)
    attempts, hears, goes = list[int](), threading.Event(), threading.Event()
    with ExitStack() as stack:
        servers = lost_acks.Servers(any_binary(), stack)
        client = stack.enter_context(rmq.Client(servers.url, retry_for=PATIENCE_S))
        topic = client.topic(name, lease=3, retry="immediate")

        @topic.handler(concurrency=1)
        def work(body: int, d: rmq.Delivery) -> None:
            attempts.append(d.attempt)
            if len(attempts) == 1:
                d.cancelled.wait(PATIENCE_S)
                hears.set()
                goes.wait(0 if ends_before else PATIENCE_S)
                d.checkpoint()

        id = topic.send(1).id
        with rmq.Worker(client, heartbeat="thread", grace=5):
            wait_for(lambda: attempts, "its handler begins")
            servers.cut()
            assert topic.cancel(id, running=True) == "requested"
            assert hears.wait(PATIENCE_S)
            if ends_before:
                wait_for(lambda: client.admin.stats(name)["cancelled"], "it is cancelled")
            servers.promote()
            goes.set()
            wait_for(lambda: client.admin.stats(name)["settled"], lambda: str(attempts))
        stats = client.admin.stats(name)
    assert attempts == [1, 1]
    assert (stats["settled"], stats["cancelled"], stats["rolled_back"]) == (1, 0, 0)


def test_scripts_that_ignore_the_request_deliver_it_again(
    server: Server, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control."""
    change = ("rollback_expired_leases", "if fields[14] then", "if false then")
    monkeypatch.setattr(script_loader, "load", loader([change]))
    with stages(server, name, tmp_path, ("sync",), slots=1, lease=2) as scenes:
        killed_while_cancelled(scenes, is_stopped=True)
        (scene,) = scenes
        with scene.topic.consumer() as consumer:
            (delivery,) = wait_for(lambda: consumer.receive(1, wait=1), "it comes again")
            assert (delivery.body["n"], delivery.attempt) == (0, 2)
            delivery.ack()
