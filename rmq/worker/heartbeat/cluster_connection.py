"""Evaluates scripts on the nodes of a Redis Cluster: what the heartbeat of a worker needs of it.

As `script_connection`, this is for the heartbeat's process: nothing but the standard library. The
rules are those of `rmq.kernel.transport.cluster_calls`, in brief: what cannot be done now is an
error of its own call, and the next round of the heartbeat comes in half a second.
"""

from __future__ import annotations

import binascii
import time

from rmq.worker.heartbeat.script_connection import RedisError, ScriptConnection

TYPE_CHECKING = False  # not imported: `typing` would be a tenth of the heartbeat's memory
if TYPE_CHECKING:
    from typing import Any

    from rmq.worker.heartbeat.script_connection import Call

    Node = tuple[str, int]

HASH_SLOTS = 16_384
ROUNDS = 8  # of one evaluation: what moves meanwhile is sent again
PAUSE_S = 0.02  # before a round, if a slot was being moved
ANSWER_S = 2.0  # of one node: the leases of the others must not wait for long
_NO_HOST = ("", "?", "None")
_ELSEWHERE = ("MOVED ", "ASK ")
_LATER = ("TRYAGAIN", "CLUSTERDOWN")


def hash_slot(key: bytes) -> int:
    """Return the hash slot of a key: that of its hash tag, if it has one."""
    begin = key.find(b"{")
    end = key.find(b"}", begin + 1)
    if begin >= 0 and end > begin + 1:
        key = key[begin + 1 : end]
    return binascii.crc_hqx(key, 0) % HASH_SLOTS


class ClusterConnection:
    """As `ScriptConnection`, with a connection to each node that is needed.

    Args:
        options: of a connection to any node; `nodes`: some nodes of the cluster.
        scripts: by verb: SHA-1 and text.
    """

    def __init__(self, options: dict[str, Any], scripts: dict[str, list[str]]) -> None:
        self.options = options
        self.scripts = scripts
        self._seeds = [(host, port) for host, port in options["nodes"]]
        self._connections: dict[Node, ScriptConnection] = {}
        self._masters: dict[int, Node] = {}  # by hash slot

    def close(self) -> None:
        """Close all connections; the next call opens others."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def evaluate(self, calls: list[Call]) -> list[Any]:
        """Evaluate scripts (verb, keys, arguments); return replies, errors among them.

        A call whose node does not answer has an error.

        Raises:
            OSError: no node returned the map of slots.
        """
        replies: list[Any] = [None] * len(calls)
        left: list[tuple[int, Node | None]] = [(at, None) for at in range(len(calls))]
        for _ in range(ROUNDS):
            left = self._round(calls, left, replies)
            if not left:
                break
        return replies

    def _round(
        self, calls: list[Call], left: list[tuple[int, Node | None]], replies: list[Any]
    ) -> list[tuple[int, Node | None]]:
        """Make the calls that are left, each with the node to ask; return those to make again."""
        if not self._masters:
            self._read_slots()
        by_node: dict[tuple[Node, bool], list[int]] = {}
        for at, asked in left:
            node = asked or self._masters.get(hash_slot(calls[at][1][0]))
            if node is None:
                replies[at] = RedisError("CLUSTERDOWN no node serves the slot")
                self._masters = {}
            else:
                by_node.setdefault((node, asked is not None), []).append(at)
        again: list[tuple[int, Node | None]] = []
        pauses = False
        for (node, asking), places in by_node.items():
            try:
                answers = self._at(node).evaluate([calls[at] for at in places], asking)
            except OSError as error:
                answers = [RedisError(f"{node[0]}:{node[1]}: {error}")] * len(places)
                self._masters = {}  # to be read again by the next evaluation
            for at, answer in zip(places, answers):  # noqa: B905 (as long as each other)
                replies[at] = answer
                text = str(answer) if isinstance(answer, RedisError) else ""
                if text.startswith(_ELSEWHERE):
                    target = self._note_redirection(text, node)
                    again.append((at, target if text.startswith("ASK") else None))
                elif text.startswith(_LATER):
                    again.append((at, None))
                    pauses = True
        if pauses:
            time.sleep(PAUSE_S)
        return again

    def _note_redirection(self, text: str, answered: Node) -> Node:
        """Return the node that `MOVED <slot> <host>:<port>` names; MOVED corrects the table."""
        kind, slot, address = text.split(" ")[:3]
        host, _, port = address.rpartition(":")
        node = (answered[0] if host in _NO_HOST else host, int(port))
        if kind == "MOVED":
            self._masters[int(slot)] = node
        return node

    def _at(self, node: Node) -> ScriptConnection:
        connection = self._connections.get(node)
        if connection is None:
            timeout = min(ANSWER_S, self.options["timeout"])
            options = {**self.options, "host": node[0], "port": node[1], "timeout": timeout}
            connection = self._connections[node] = ScriptConnection(options, self.scripts)
        return connection

    def _read_slots(self) -> None:
        last = OSError("no node of the cluster is known")
        for node in dict.fromkeys([*self._connections, *self._seeds]):
            try:
                reply = self._at(node).send_words(["CLUSTER", "SLOTS"])
            except (OSError, ValueError, IndexError) as error:
                self._connections.pop(node).close()
                last = error if isinstance(error, OSError) else OSError(f"reply: {error}")
                continue
            if isinstance(reply, RedisError) or not reply:
                last = OSError(str(reply))
                continue
            for first, end, master, *_ in reply:
                host = (master[0] or b"").decode()
                place = (node[0] if host in _NO_HOST else host, master[1])
                self._masters.update(dict.fromkeys(range(first, end + 1), place))
            return
        raise last


def connect(options: dict[str, Any], scripts: dict[str, list[str]]) -> Any:
    """Return what evaluates scripts on the server, or the cluster, of these options."""
    kind = ClusterConnection if options.get("nodes") else ScriptConnection
    return kind(options, scripts)
