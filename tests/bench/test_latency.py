"""`python -m bench --only idle`: consumers that wait, one and many."""

from __future__ import annotations

import pytest

from bench import machine
from bench.latency import MANY_CONSUMERS, MANY_SLOTS, idle


@pytest.mark.slow
def test_one_waiting_consumer_and_many_are_measured_and_the_server_stays_without_a_replica() -> (
    None
):
    with machine.server() as own:
        *commands, cpu, writes, sent = idle(own, 1, True)
        with own.raw() as raw:
            assert raw.info("replication")["master_repl_offset"] == 0

    assert [row.name for row in commands] == ["idle consumer, 1 slot", "idle consumer, 8 slots"]
    assert all(row.value > 0 for row in (*commands, cpu, sent))
    assert writes.target == MANY_CONSUMERS * MANY_SLOTS / 10
