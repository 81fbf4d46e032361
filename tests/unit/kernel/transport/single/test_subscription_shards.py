"""Where a consumer subscribes on a cluster, and when it goes elsewhere."""

from __future__ import annotations

import os
import socket
import time
from typing import Any

import pytest
import redis
from redis.exceptions import ClusterDownError, MovedError

import rmq
from rmq.kernel.transport.cluster.node_pools import ANSWER_S
from rmq.kernel.transport.connections.failures import NotConnected
from rmq.kernel.transport.connections.operations import Subscribe
from rmq.kernel.transport.flow.steps import Subscription
from rmq.kernel.transport.hash_slots import SlotTable, hash_slot
from rmq.kernel.transport.single import subscription as transport_subscription
from rmq.kernel.transport.single.blocking import InterruptibleReader
from rmq.kernel.transport.single.subscription import SubscribedConnection

CHANNEL = b"rmq:{orders_0}:wake"
SLOT = hash_slot(CHANNEL)
HERE, THERE = ("h", 1), ("h", 2)


@pytest.fixture
def table() -> SlotTable:
    made = SlotTable([HERE])
    made.read([[0, 16383, [b"h", 2]]], HERE)
    made.note_moved(SLOT, HERE)
    return made


def subscription(node: tuple[str, int] | None) -> Subscription:
    made = Subscription(b"rmq:{orders}:wake", takes_batches=True)
    made.slot_channel = CHANNEL
    made.connection = SubscribedConnection(None, 0)
    made.connection.node = node
    return made


def test_a_shard_channel_is_asked_for_at_the_master_of_its_slot(table: SlotTable) -> None:
    wanted = Subscribe([b"wake"], shard=CHANNEL + b":s:1")
    assert transport_subscription.node_for(wanted, table) == HERE
    assert wanted.packed().endswith(
        b"SSUBSCRIBE\r\n$%d\r\n%s\r\n" % (len(wanted.shard), wanted.shard)
    )


def test_while_that_master_does_not_answer_any_other_will_do(table: SlotTable) -> None:
    table.note_failed(HERE)
    wanted = Subscribe([b"wake"], shard=CHANNEL + b":s:1")
    assert transport_subscription.node_for(wanted, table) == THERE


@pytest.mark.parametrize("node", [THERE, None])
def test_a_subscription_elsewhere_gives_up_its_connection(
    table: SlotTable, node: tuple[str, int] | None
) -> None:
    held = subscription(node)
    transport_subscription.follow(held, table)
    assert held.must_reconnect


def test_a_subscription_at_the_master_stays(table: SlotTable) -> None:
    held = subscription(HERE)
    transport_subscription.follow(held, table)
    assert held.is_sharded
    assert not held.must_reconnect


def test_a_subscription_stays_while_the_master_does_not_answer(table: SlotTable) -> None:
    table.note_failed(HERE)
    held = subscription(THERE)
    transport_subscription.follow(held, table)
    assert not held.must_reconnect


def test_a_subscription_of_several_slots_has_no_own_channel_and_stays(table: SlotTable) -> None:
    held = subscription(THERE)
    held.slot_channel = b""
    transport_subscription.follow(held, table)
    assert not held.must_reconnect
    assert not held.accepts_hand_overs


@pytest.mark.parametrize(
    ("refusal", "node"),
    [
        (MovedError("5 h:2"), None),
        (ClusterDownError("down"), None),
        (redis.exceptions.NoPermissionError("no"), HERE),
        (redis.ResponseError("unknown command 'SSUBSCRIBE'"), HERE),
    ],
)
def test_a_refusal_that_may_end_is_tried_again_elsewhere(
    refusal: Exception, node: tuple[str, int] | None
) -> None:
    wanted = Subscribe([b"wake"], shard=CHANNEL)
    made = SubscribedConnection(None, 0, {CHANNEL: refusal})
    transport_subscription.note_node(made, wanted, HERE)
    assert made.node == node


def test_a_node_that_stands_still_does_not_keep_who_subscribes_for_as_long_as_a_call() -> None:
    """The kernel still connects to it; and nobody has asked it for anything since."""
    with (
        socket.create_server(("127.0.0.1", 0)) as frozen,
        rmq.Client(f"redis+cluster://127.0.0.1:{frozen.getsockname()[1]}", timeout=15) as client,
    ):
        transport: Any = client._transport
        node = frozen.getsockname()
        transport._table.read([[0, 16383, [b"127.0.0.1", node[1]]]], node)
        held = SubscribedConnection(None, 0)
        began = time.monotonic()

        with pytest.raises(NotConnected):
            transport._subscribed(Subscribe([CHANNEL]))
        transport._table.note_answered(node)
        assert not transport.add_channel(held, CHANNEL)

        assert time.monotonic() - began < 10 * ANSWER_S
        assert node in transport._table.failed_nodes
        assert held.others == {}


class Held:
    """A connection of which only the socket counts."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def can_read(self, timeout: float) -> bool:
        return False

    def read_response(self, disconnect_on_error: bool) -> int:
        return len(self._sock.recv(16))


def test_a_connection_is_watched_whose_sockets_number_was_that_of_a_closed_one() -> None:
    first, first_peer = socket.socketpair()
    second, peer = socket.socketpair()
    reader, number = InterruptibleReader(Held(first)), first.fileno()
    first.close()
    os.dup2(second.fileno(), number)
    with first_peer, second, peer, socket.socket(fileno=number) as again:
        reader.watch(Held(again))
        peer.send(b"four")

        assert reader.read(1.0) == 4
    reader.close()
