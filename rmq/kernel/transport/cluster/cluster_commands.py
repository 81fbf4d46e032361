"""Send each command to the cluster node of its slot, and follow slots that move to other nodes.

All keys of a call are in one hash slot. The call goes to the master that serves this slot.
Calls are repeated after these replies:

* MOVED: another node serves the slot. Repeat the call on that node.
* ASK: the slot is being moved, and the keys of this call are already on another node. Send ASKING
  and the call to that node, in one write.
* TRYAGAIN: the slot is being moved, and the keys are on two nodes, or a key does not exist. Pause
  and repeat.
* NOSCRIPT: repeat on the same node, after SCRIPT LOAD.
* CLUSTERDOWN, READONLY, LOADING, or a lost connection: read the table of slots again, and repeat.

Each of these replies means that the call was not executed. If the connection is lost before a
reply, the call may have been executed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import redis
from redis.exceptions import AskError, MovedError

from rmq.errors import OutcomeUnknown, RMQError, Unavailable
from rmq.kernel.core import keys as rmq_keys
from rmq.kernel.core.settings import Fsync, Replicated
from rmq.kernel.transport.cluster.joined_replies import (
    MANY_KEYS,
    is_redirection,
    is_unreachable,
    joined,
    least,
)
from rmq.kernel.transport.cluster.node_call import (
    RoutedCall,
    missing_scripts,
    pack_calls,
    worst_error,
)
from rmq.kernel.transport.connections.failures import NotConnected, StaleConnection
from rmq.kernel.transport.connections.operations import (
    ExchangeAll,
    NodeExchange,
    Operations,
    Pause,
    RefreshTable,
)
from rmq.kernel.transport.connections.pool import SLOW_S, pack, reply_of
from rmq.kernel.transport.errors import REDIS_ERRORS, Kind, code_of, forbids, kind_of, translate
from rmq.kernel.transport.flow.steps import Command, OnEveryMaster
from rmq.kernel.transport.hash_slots import Node, SlotTable, address_of, divide, hash_slot
from rmq.kernel.transport.lua.script_loader import Script
from rmq.kernel.transport.single.durability import check_wait, wait_words
from rmq.kernel.transport.single.retry_deadline import RetryDeadline
from rmq.kernel.transport.single.server_commands import (
    eval_request,
    is_loaded_by,
    key_of_wrong_type,
    parsed,
)
from rmq.kernel.transport.url import Address

AT_ONCE_MAX = 5  # number of rounds without a pause; more redirections are not progress
TRYAGAIN_PAUSE_S = 0.1  # longest pause: a slot with few keys moves in milliseconds
PAUSE_S = 0.1  # longest pause while a node is away: other nodes soon name its successor
_SLOTS_WORDS: tuple[Any, ...] = ("CLUSTER", "SLOTS")
_SLOTS = pack(_SLOTS_WORDS)
_ON_ANY_NODE = {"PING", "INFO", "TIME", "PUBLISH"}  # commands without a key


class ClusterCommands:
    """Executes the commands of one transport on a cluster.

    Args:
        address: Address of the cluster, shown in errors.
        retry_for: How long to repeat a failed command, in seconds.
        timeout_s: Longest wait for a reply.
        table: Table that says which node serves which slot. The transport uses the same table.
        loaded: Scripts that this client has loaded on each node. A node loses them when it
            restarts.
    """

    def __init__(
        self,
        address: Address,
        retry_for: float,
        timeout_s: float,
        table: SlotTable,
        loaded: dict[Node, set[Script]],
    ) -> None:
        self._address = address
        self._retry_for = retry_for
        self._timeout_s = timeout_s
        self._table = table
        self.loaded = loaded

    def deadline(self, name: str) -> RetryDeadline:
        """Return a new retry deadline for a command."""
        return RetryDeadline(name, self._address, self._retry_for)

    def command(self, command: Command[Any]) -> Operations[Any]:
        """Execute a command, and return its value.

        Raises:
            RMQError: The command was refused, or the retry deadline has passed.
        """
        (value,), _ = yield from self.pipeline([command], None)
        if isinstance(value, RMQError):
            raise value
        return value

    def pipeline(
        self, commands: Sequence[Command[Any]], durability: Replicated | Fsync | None
    ) -> Operations[tuple[list[Any], Any]]:
        """Execute several commands on their nodes, with one parallel round trip for each node.

        Returns:
            Two values. The first is a list with the value or RMQError of each command. The second
            is the smallest reply of a node to WAIT or WAITAOF, or the error of a node that refused
            to wait.
        """
        if durability is not None:
            check_wait(durability, self._timeout_s)
        divided = [divide(command, hash_slot) for command in commands]
        calls = [
            [
                RoutedCall(hash_slot(part.keys[0]), part)
                for part in (pieces.parts if pieces else [whole])
            ]
            for whole, pieces in zip(commands, divided, strict=True)
        ]
        confirmed = yield from self._run(
            [call for group in calls for call in group], commands[0].script.name, durability
        )
        values: list[Any] = []
        for command, pieces, group in zip(commands, divided, calls, strict=True):
            found = []
            for call in group:
                found.append((yield from self._value(call)))
            values.append(found[0] if pieces is None else joined(command, pieces.join, found))
        return values, least(confirmed, durability)

    def raw_command(self, name: str, words: Sequence[Any]) -> Operations[Any]:
        """Execute a plain command, and return its reply.

        The command SCAN reads the keys of all masters, one master after another.

        Raises:
            RMQError: The command was refused, or the retry deadline has passed.
        """
        verb, key_at = words[0], 2 if words[0] == "MEMORY" else 1  # after a subcommand
        if verb == "SCAN":
            return (yield from self._scan(name, words))
        if verb not in MANY_KEYS:
            calls = [RoutedCall(None if verb in _ON_ANY_NODE else hash_slot(words[key_at]), words)]
            yield from self._run(calls, name, None)
            self._raise_refusal(calls[0], name, words)
            return calls[0].reply
        by_slot: dict[int, list[int]] = {}
        for place, key in enumerate(words[1:]):
            by_slot.setdefault(hash_slot(key), []).append(place)
        calls = [
            RoutedCall(slot, [verb, *(words[1 + place] for place in places)])
            for slot, places in by_slot.items()
        ]
        yield from self._run(calls, name, None)
        for call in calls:
            self._raise_refusal(call, name, words)
        order = [place for places in by_slot.values() for place in places]
        return MANY_KEYS[verb](order, [call.reply for call in calls])

    def on_every_master(self, step: OnEveryMaster) -> Operations[list[Any]]:
        """Execute a plain command on all masters, and return their replies.

        The method stores the masters that replied in `step.addresses`.

        Raises:
            RMQError: A master refused the command, or the retry deadline has passed. A step that
                allows missing masters fails at the deadline only if no master answered.
        """
        name = step.what
        yield from self._run([RoutedCall(None, ("PING",))], name, None)  # until the cluster answers
        with contextlib.suppress(*REDIS_ERRORS):
            yield RefreshTable(self._table.version)  # there may be a new master
        asked = {f"{node[0]}:{node[1]}": node for node in self._table.masters()}
        calls = {
            address: RoutedCall(None, step.words, node)
            for address, node in asked.items() if address not in (step.without or ())
        }  # fmt: skip
        try:
            yield from self._run(list(calls.values()), name, None)
        except (Unavailable, OutcomeUnknown):
            step.away = [address for address, call in calls.items() if call.error is not None]
            if step.without is None or len(step.away) == len(calls):
                raise
        step.addresses = [address for address in calls if address not in step.away]
        for address in step.addresses:
            self._raise_refusal(calls[address], name, step.words)
        return [calls[address].reply for address in step.addresses]

    def read_table(self) -> Operations[None]:
        """Ask the cluster's nodes which node serves each hash slot, and store the first answer.

        Raises:
            redis.RedisError: No node replied.
            ConfigurationError: The servers are not a cluster.
        """
        last: BaseException = NotConnected("no node of the cluster is known")
        nodes = self._table.candidates()
        for node, is_brief in [
            *((node, True) for node in nodes),
            *((node, False) for node in nodes),
        ]:
            (replies,) = yield ExchangeAll([NodeExchange(node, _SLOTS, 1, is_brief)])
            reply = replies if isinstance(replies, BaseException) else replies[0]
            if not isinstance(reply, BaseException):
                self._table.note_answered(node)
                if reply:
                    self._table.read(reply, node)
                    return
                last = NotConnected(f"{node[0]}:{node[1]} serves no slots, and knows of none")
                continue
            self._table.note_failed(node)
            last = reply
            if "cluster support disabled" in str(reply):
                raise translate(reply, "cluster slots", [])
        if kind_of(last) is Kind.UNKNOWN:
            last = NotConnected(str(last) or type(last).__name__)  # the command changed nothing
        raise last

    # --- rounds ----------------------------------------------------------------------------------

    def _run(
        self, calls: Sequence[RoutedCall], name: str, durability: Replicated | Fsync | None
    ) -> Operations[list[Any]]:
        deadline, confirmed, at_once = self.deadline(name), list[Any](), 0
        error: BaseException | None
        try:
            while True:
                error = None
                if not self._table.version:
                    try:
                        yield RefreshTable(0)
                    except REDIS_ERRORS as failure:
                        error = failure
                if error is None:
                    yield from self._round(
                        [call for call in calls if call.error is not None], durability, confirmed
                    )
                    if self._fail_fast(calls, deadline) and self._table.age_s() > PAUSE_S:
                        with contextlib.suppress(*REDIS_ERRORS):
                            yield RefreshTable(self._table.version)
                    left = [call for call in calls if call.error is not None]
                    if not left:
                        return confirmed
                    if len(left) < len(calls):
                        deadline.note_partly_done()
                    error = worst_error(left)
                    at_once += 1
                    if is_redirection(error) and at_once <= AT_ONCE_MAX:
                        continue
                if kind_of(error) is Kind.REFUSED and not is_redirection(error):
                    raise error
                pause_s = deadline.next_pause(error)
                if code_of(error) == "TRYAGAIN":
                    yield Pause(min(pause_s, TRYAGAIN_PAUSE_S))
                    continue
                yield Pause(min(pause_s, PAUSE_S))
                with contextlib.suppress(*REDIS_ERRORS):  # the next round raises the error
                    yield RefreshTable(self._table.version)
        except REDIS_ERRORS as failure:
            raise translate(failure, name, []) from failure

    def _fail_fast(self, calls: Sequence[RoutedCall], deadline: RetryDeadline) -> bool:
        """End the calls that may fail fast, if their node cannot be reached.

        Return whether a call has ended.
        """
        failed = False
        for call in calls:
            error = call.error
            if error is None or not call.fails_fast or not is_unreachable(error):
                continue
            node = call.node or self._node_of(call.slot)
            is_first = call.losses == 1 and isinstance(error, StaleConnection)
            if is_first and node is not None and not self._table.is_unreachable(node):
                continue  # an old connection that died says nothing about its node
            call.fail(deadline.failure(error, call.losses > 0), self._retry_for)
            failed = True
        return failed

    def _round(
        self,
        calls: Sequence[RoutedCall],
        durability: Replicated | Fsync | None,
        confirmed: list[Any],
    ) -> Operations[None]:
        by_node: dict[Node, list[RoutedCall]] = {}
        for call in calls:
            node = call.asked or call.node or self._node_of(call.slot)
            if node is not None and call.fails_fast and self._table.is_unreachable(node):
                call.error = NotConnected(f"{node[0]}:{node[1]} did not answer just now")
            elif node is None:
                call.error = redis.exceptions.ClusterDownError("CLUSTERDOWN no node serves a slot")
            else:
                by_node.setdefault(node, []).append(call)
        # Send a single command without its script: the node usually has it. A wait for copies
        # would time out after a refusal, so its script is loaded first.
        load_first = len(calls) > 1 or durability is not None
        loads = dict[Node, list[Script]]()
        for node, part in by_node.items():
            loaded = self.loaded.setdefault(node, set())
            loads[node] = missing_scripts(part, loaded, load_first)
        wait = pack(wait_words(durability)) if durability is not None else b""
        exchange = ExchangeAll(
            [
                NodeExchange(
                    node,
                    *pack_calls(loads[node], part, wait),
                    is_brief=all(call.fails_fast for call in part),
                    late=durability is not None,
                )
                for node, part in by_node.items()
            ]
        )
        began = time.monotonic()
        results = (yield exchange) if by_node else []
        took_s = time.monotonic() - began
        if took_s > SLOW_S:
            for node in by_node:
                self._table.note_failed(node, None)  # so that another node reports the masters
            with contextlib.suppress(*REDIS_ERRORS):
                yield RefreshTable(self._table.version)
        for sent, replies in zip(exchange.parts, results, strict=True):
            part = by_node[sent.node]
            is_stale = isinstance(replies, StaleConnection) and took_s < SLOW_S
            if took_s > SLOW_S and not self._serves(sent.node, part):
                replies, is_stale = StaleConnection("a former master answered late"), True
            if isinstance(replies, BaseException):
                self._table.note_failed(sent.node, None if is_stale else took_s)
                self.loaded[sent.node].clear()  # the node may have restarted without scripts
                for call in part:
                    call.note_lost(replies)
                continue
            self._table.note_answered(sent.node)
            yield from self._note_replies(sent.node, part, loads[sent.node], iter(replies))
            if durability is not None and any(call.error is None for call in part):
                confirmed.append(replies[-1])

    def _serves(self, node: Node, part: Sequence[RoutedCall]) -> bool:
        """Return whether a node is still the master for its calls.

        A failover may replace a master process that is frozen. When the frozen process continues,
        it still answers the calls that it received before, but the cluster loses the writes of
        these calls.
        """
        slots = {call.slot for call in part if call.asked is None and call.slot is not None}
        return all(self._table.node_of(slot) == node for slot in slots)

    def _note_replies(
        self,
        node: Node,
        part: Sequence[RoutedCall],
        loads: Sequence[Script],
        replies: Iterator[Any],
    ) -> Operations[None]:
        refusals: dict[Script, BaseException] = {}
        for script, reply in zip(loads, replies, strict=False):
            if isinstance(reply, BaseException):
                refusals[script] = reply
            else:
                self.loaded[node].add(script)
        is_stale = False
        for call in part:
            own = list(islice(replies, call.count))
            if call.asked is not None and not isinstance(own[0], redis.ResponseError):
                del own[0]  # ASKING was granted
            is_stale |= self._note_reply(node, call, own)
        for script, refusal in refusals.items():
            lacking = [call for call in part if call.lacks_script(script)]
            if lacking:
                yield from self._load_by_eval(node, script, refusal, lacking)
            else:
                self.loaded[node].add(script)  # the node had it
        if is_stale:
            with contextlib.suppress(*REDIS_ERRORS):
                yield RefreshTable(self._table.version)

    def _load_by_eval(
        self, node: Node, script: Script, refusal: BaseException, calls: Sequence[RoutedCall]
    ) -> Operations[None]:
        """Load a script by EVAL, because the node refused SCRIPT LOAD.

        If the node also refuses EVAL, end the calls of this script.
        """
        if forbids(refusal):
            (replies,) = yield ExchangeAll([NodeExchange(node, *eval_request(script))])
            if isinstance(replies, BaseException):
                return  # the next round finds the lost connection
            if is_loaded_by(replies[0]):
                self.loaded[node].add(script)
                return
            if not forbids(replies[0]):
                refusal = replies[0]
        for call in calls:
            call.refuse(refusal)

    def _note_reply(self, node: Node, call: RoutedCall, replies: Sequence[Any]) -> bool:
        """Record the reply to a call. Return whether the slot table must be read again."""
        reply = reply_of(replies)
        asked, call.asked, call.error = call.asked, None, None
        if not isinstance(reply, BaseException):
            call.reply = reply
            return False
        if isinstance(reply, MovedError):  # MovedError is a subclass of AskError
            call.error = reply
            return self._table.note_moved(reply.slot_id, address_of(reply.host, reply.port, node))
        if isinstance(reply, AskError):
            call.error, call.asked = reply, address_of(reply.host, reply.port, node)
        elif kind_of(reply) is Kind.RELOAD and call.script is not None:
            self.loaded[node].discard(call.script)
            call.error, call.asked = reply, asked
        elif kind_of(reply) is Kind.AGAIN:
            call.error = reply
        else:
            call.reply = reply
        return False

    def _node_of(self, slot: int | None) -> Node | None:
        return self._table.any_node() if slot is None else self._table.node_of(slot)

    # --- replies ---------------------------------------------------------------------------------

    def _value(self, call: RoutedCall) -> Operations[Any]:
        assert isinstance(call.command, Command)
        if isinstance(call.reply, RMQError):
            return call.reply
        if not isinstance(call.reply, BaseException):
            return parsed(call.command, call.reply)
        wrong_key = ""
        if code_of(call.reply) == "WRONGTYPE":
            asks = [RoutedCall(call.slot, ("TYPE", key)) for key in call.command.keys]
            with contextlib.suppress(RMQError):
                yield from self._run(asks, call.command.script.name, None)
                wrong_key = key_of_wrong_type(call.command, [ask.reply for ask in asks])
        keys = [rmq_keys.printable(key) for key in call.command.keys]
        return translate(call.reply, call.command.script.name, keys, wrong_key)

    def _raise_refusal(self, call: RoutedCall, name: str, words: Sequence[Any]) -> None:
        if isinstance(call.reply, BaseException):
            shown = [w.decode() if isinstance(w, bytes) else str(w) for w in words[1:2]]
            raise translate(call.reply, name, shown) from call.reply

    def _scan(self, name: str, words: Sequence[Any]) -> Operations[Any]:
        """Read one page of all keys of the cluster. The pages come from one master after another.

        The cursor is b"0" at the beginning and at the end. For all other pages, it is
        `<host>:<port>/<cursor of the node>`.
        """
        if not self._table.version:
            yield RefreshTable(0)
        text = words[1].decode() if isinstance(words[1], bytes) else str(words[1])
        place, slash, cursor = text.rpartition("/")
        masters = self._table.masters()
        host, _, port = place.rpartition(":")
        node = (host, int(port)) if slash else masters[0]
        if node not in masters:
            raise Unavailable(
                f"{name}: {place} is no longer a master, so some of its keys were not read; "
                "call again"
            )
        call = RoutedCall(None, [words[0], cursor or "0", *words[2:]], node)
        yield from self._run([call], name, None)
        self._raise_refusal(call, name, words)
        following, page = call.reply
        if following == b"0":
            later = [master for master in masters if master > node]
            if not later:
                return [b"0", page]
            node = later[0]
        return [b"%s:%d/%s" % (node[0].encode(), node[1], following), page]
