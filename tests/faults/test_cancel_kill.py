"""kill -9 of a worker whose message is cancelled: before it hears of the request, and after."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq.kernel.transport.lua import script_loader
from tests.faults.worker_scene import Scene, stages
from tests.patience import wait_for
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
