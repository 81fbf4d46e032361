"""`python -m bench --only drain`: RMQ beside a stream that keeps and one that deletes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bench import __main__ as bench, machine
from bench.drain import KINDS, TARGET, _drain, drain
from bench.queues import DeletingStream, Rmq, Stream


@pytest.mark.slow
def test_a_small_run_measures_both_streams_in_every_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "drain.json"
    arguments = ["--only", "drain", "--quick", "--rounds", "2", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", ["bench", *arguments])

    bench.main()

    keeping, deleting = json.loads(file.read_text())["figures"]
    assert keeping["name"].endswith("XREADGROUP and XACK")
    assert deleting["name"].endswith("XREADGROUP, XACK and XDEL")
    for figure in (keeping, deleting):
        rates = zip(
            figure["notes"]["messages/s"], figure["notes"]["the stream's messages/s"], strict=True
        )
        assert figure["rounds"] == [own / its for own, its in rates]
        assert len(figure["rounds"]) == 2


def test_a_drained_queue_is_empty_and_a_stream_keeps_what_nobody_deletes() -> None:
    left = {}
    with machine.server() as server, server.raw() as raw:
        for kind in KINDS:
            queue = kind(server.url, kind.name)
            queue.send([b"x"] * 300)
            _drain(queue, 300)
            if isinstance(queue, Stream):
                left[kind] = raw.xlen(queue.key)
                assert raw.xpending(queue.key, queue.GROUP)["pending"] == 0
            else:
                left[kind] = queue.client.admin.stats(queue.topic.name)["records"]
            with pytest.raises(RuntimeError, match="took 0 of 100"):
                _drain(queue, 100)
            queue.close()

        assert all(figure.target == TARGET for figure in drain(server, 1, True))

    assert left == {Rmq: 0, Stream: 300, DeletingStream: 0}


def test_a_server_with_xackdel_acks_and_deletes_in_one_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[tuple[object, ...]] = []
    with machine.server() as server:
        queue = DeletingStream(server.url, "xackdel")
        assert not queue.has_xackdel  # the tests have no Redis 8.2

        queue.has_xackdel = True
        monkeypatch.setattr(queue.redis, "execute_command", lambda *words: sent.append(words))
        queue.ack([(b"1-0", {}), (b"2-0", {})])
        queue.close()

    assert sent == [("XACKDEL", queue.key, queue.GROUP, "KEEPREF", "IDS", 2, b"1-0", b"2-0")]
