"""Script calls on a Redis Cluster: send each to the node of its slot, follow what has moved.

A call goes to the master of the hash slot of its first key; all its keys are in that one. What a
node refuses is repeated, and nothing else:

* MOVED: the slot is served elsewhere. Repeat there.
* ASK: this call's keys have gone elsewhere already, while the slot is being moved. Repeat there,
  behind ASKING, in one write.
* TRYAGAIN: the slot is being moved, and the call's keys are divided, or one of them does not exist.
  Pause and repeat.
* NOSCRIPT: repeat behind SCRIPT LOAD, on the node that said so.
* CLUSTERDOWN, READONLY, LOADING, a lost connection: read the table of slots again, and repeat.

Only a lost reply leaves open whether a call was done.
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
    is_away,
    is_redirection,
    joined,
    least,
)
from rmq.kernel.transport.cluster.tasks import Task, missing_scripts, packed_part, worst_error
from rmq.kernel.transport.connections.pool import (
    SLOW_S,
    NotConnected,
    StaleConnection,
    pack,
    reply_of,
)
from rmq.kernel.transport.errors import (
    REDIS_ERRORS,
    Kind,
    code_of,
    forbids,
    kind_of,
    translate,
)
from rmq.kernel.transport.flow.steps import Command, OnEveryMaster
from rmq.kernel.transport.hash_slots import (
    ExchangeAll,
    Node,
    NodeExchange,
    RefreshTable,
    SlotTable,
    address_of,
    divide,
    hash_slot,
)
from rmq.kernel.transport.lua.script_loader import Script
from rmq.kernel.transport.single.script_calls import (
    Operations,
    Pause,
    RetryDeadline,
    check_wait,
    eval_request,
    is_loaded_by,
    key_of_wrong_type,
    parsed,
    wait_words,
)
from rmq.kernel.transport.url import Address

AT_ONCE_MOST = 5  # rounds without a pause: more redirections than that are no progress
TRYAGAIN_PAUSE_S = 0.1  # the longest: a slot of a few keys moves in milliseconds
PAUSE_S = 0.1  # the longest while a node is away: the others know of its successor in moments
_SLOTS_WORDS: tuple[Any, ...] = ("CLUSTER", "SLOTS")
_SLOTS = pack(_SLOTS_WORDS)
_ON_ANY_NODE = {"PING", "INFO", "TIME", "PUBLISH"}  # commands without a key


class ClusterCalls:
    """Carries out the commands of one transport on a cluster.

    Args:
        address: for errors.
        retry_for: seconds in which a command is repeated.
        timeout_s: how long a connection waits for a reply.
        table: of the cluster; the transport and this class share it.
        loaded: the scripts that each node is believed to have.
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
        """Begin the retry deadline of a command."""
        return RetryDeadline(name, self._address, self._retry_for)

    def command(self, command: Command[Any]) -> Operations[Any]:
        """Carry out a command; return its value.

        Raises:
            RMQError: it was refused, or the retry deadline has passed.
        """
        (value,), _ = yield from self.pipeline([command], None)
        if isinstance(value, RMQError):
            raise value
        return value

    def pipeline(
        self, commands: Sequence[Command[Any]], durability: Replicated | Fsync | None
    ) -> Operations[tuple[list[Any], Any]]:
        """Carry out several commands, those of a node in one round trip, and all nodes at once.

        Returns:
            The value of each command or its RMQError, and the reply to the wait for copies if there
            is a `durability`: the least count of all nodes, or the first error.
        """
        if durability is not None:
            check_wait(durability, self._timeout_s)
        divided = [divide(command, hash_slot) for command in commands]
        tasks = [
            [Task(hash_slot(part.keys[0]), part) for part in (pieces.parts if pieces else [whole])]
            for whole, pieces in zip(commands, divided, strict=True)
        ]
        confirmed = yield from self._run(
            [task for group in tasks for task in group], commands[0].script.name, durability
        )
        values: list[Any] = []
        for command, pieces, group in zip(commands, divided, tasks, strict=True):
            found = []
            for task in group:
                found.append((yield from self._value(task)))
            values.append(found[0] if pieces is None else joined(command, pieces.join, found))
        return values, least(confirmed, durability)

    def raw_command(self, name: str, words: Sequence[Any]) -> Operations[Any]:
        """Carry out a plain command; return its reply. SCAN walks the keys of all masters.

        Raises:
            RMQError: it was refused, or the retry deadline has passed.
        """
        verb, key_at = words[0], 2 if words[0] == "MEMORY" else 1  # behind a subcommand
        if verb == "SCAN":
            return (yield from self._scan(name, words))
        if verb not in MANY_KEYS:
            tasks = [Task(None if verb in _ON_ANY_NODE else hash_slot(words[key_at]), words)]
            yield from self._run(tasks, name, None)
            self._raise_refusal(tasks[0], name, words)
            return tasks[0].reply
        by_slot: dict[int, list[int]] = {}
        for place, key in enumerate(words[1:]):
            by_slot.setdefault(hash_slot(key), []).append(place)
        tasks = [
            Task(slot, [verb, *(words[1 + place] for place in places)])
            for slot, places in by_slot.items()
        ]
        yield from self._run(tasks, name, None)
        for task in tasks:
            self._raise_refusal(task, name, words)
        order = [place for places in by_slot.values() for place in places]
        return MANY_KEYS[verb](order, [task.reply for task in tasks])

    def on_every_master(self, step: OnEveryMaster) -> Operations[list[Any]]:
        """Carry out a plain command on all masters; return their replies, and note whose they are.

        Raises:
            RMQError: one of them refused it, or the retry deadline has passed. Where some may be
                left out, it has passed and none of them answered.
        """
        name = step.what
        yield from self._run([Task(None, ("PING",))], name, None)  # until the cluster answers
        with contextlib.suppress(*REDIS_ERRORS):
            yield RefreshTable(self._table.version)  # a master may have come since
        asked = {f"{node[0]}:{node[1]}": node for node in self._table.masters()}
        tasks = {
            address: Task(None, step.words, node)
            for address, node in asked.items() if address not in (step.without or ())
        }  # fmt: skip
        try:
            yield from self._run(list(tasks.values()), name, None)
        except (Unavailable, OutcomeUnknown):
            step.away = [address for address, task in tasks.items() if task.error is not None]
            if step.without is None or len(step.away) == len(tasks):
                raise
        step.addresses = [address for address in tasks if address not in step.away]
        for address in step.addresses:
            self._raise_refusal(tasks[address], name, step.words)
        return [tasks[address].reply for address in step.addresses]

    def read_table(self) -> Operations[None]:
        """Read from any node which node serves which slot.

        Raises:
            redis.RedisError: no node reported it. ConfigurationError: they are no cluster.
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
            last = NotConnected(str(last) or type(last).__name__)  # it asked, and changed nothing
        raise last

    # --- rounds ----------------------------------------------------------------------------------

    def _run(
        self, tasks: Sequence[Task], name: str, durability: Replicated | Fsync | None
    ) -> Operations[list[Any]]:
        """Carry out tasks; return the replies to the waits for copies."""
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
                        [task for task in tasks if task.error is not None], durability, confirmed
                    )
                    if self._fail_fast(tasks, deadline) and self._table.age_s() > PAUSE_S:
                        with contextlib.suppress(*REDIS_ERRORS):
                            yield RefreshTable(self._table.version)
                    left = [task for task in tasks if task.error is not None]
                    if not left:
                        return confirmed
                    if len(left) < len(tasks):
                        deadline.note_partly_done()
                    error = worst_error(left)
                    at_once += 1
                    if is_redirection(error) and at_once <= AT_ONCE_MOST:
                        continue
                if kind_of(error) is Kind.REFUSED and not is_redirection(error):
                    raise error
                pause_s = deadline.next_pause(error)
                if code_of(error) == "TRYAGAIN":
                    yield Pause(min(pause_s, TRYAGAIN_PAUSE_S))
                    continue
                yield Pause(min(pause_s, PAUSE_S))
                with contextlib.suppress(*REDIS_ERRORS):  # the next round says what is wrong
                    yield RefreshTable(self._table.version)
        except REDIS_ERRORS as failure:
            raise translate(failure, name, []) from failure

    def _fail_fast(self, tasks: Sequence[Task], deadline: RetryDeadline) -> bool:
        """End the tasks that fail fast, and whose node is away; return whether there was one."""
        failed = False
        for task in tasks:
            error = task.error
            if error is None or not task.fails_fast or not is_away(error):
                continue
            node = task.node or self._node_of(task.slot)
            is_first = task.losses == 1 and isinstance(error, StaleConnection)
            if is_first and node is not None and not self._table.is_away(node):
                continue  # the death of an old connection says nothing about its node
            task.fail(deadline.failure(error, task.losses > 0), self._retry_for)
            failed = True
        return failed

    def _round(
        self,
        tasks: Sequence[Task],
        durability: Replicated | Fsync | None,
        confirmed: list[Any],
    ) -> Operations[None]:
        """Send each task once; note its reply, or why it is to be sent again."""
        by_node: dict[Node, list[Task]] = {}
        for task in tasks:
            node = task.asked or task.node or self._node_of(task.slot)
            if node is not None and task.fails_fast and self._table.is_away(node):
                task.error = NotConnected(f"{node[0]}:{node[1]} did not answer just now")
            elif node is None:
                task.error = redis.exceptions.ClusterDownError("CLUSTERDOWN no node serves a slot")
            else:
                by_node.setdefault(node, []).append(task)
        # A single command goes without: its node has the script, or says that it has not. Behind
        # that refusal a wait for copies would last for as long as it may.
        beforehand = len(tasks) > 1 or durability is not None
        loads = dict[Node, list[Script]]()
        for node, part in by_node.items():
            loaded = self.loaded.setdefault(node, set())
            loads[node] = missing_scripts(part, loaded, beforehand)
        wait = pack(wait_words(durability)) if durability is not None else b""
        exchange = ExchangeAll(
            [
                NodeExchange(
                    node,
                    *packed_part(loads[node], part, wait),
                    is_brief=all(task.fails_fast for task in part),
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
                self._table.note_failed(node, None)  # so that others say who is a master
            with contextlib.suppress(*REDIS_ERRORS):
                yield RefreshTable(self._table.version)
        for sent, replies in zip(exchange.parts, results, strict=True):
            part = by_node[sent.node]
            is_stale = isinstance(replies, StaleConnection) and took_s < SLOW_S
            if took_s > SLOW_S and not self._serves(sent.node, part):
                replies, is_stale = StaleConnection("a former master answered late"), True
            if isinstance(replies, BaseException):
                self._table.note_failed(sent.node, None if is_stale else took_s)
                self.loaded[sent.node].clear()  # it may have started anew, without any
                for task in part:
                    task.note_lost(replies)
                continue
            self._table.note_answered(sent.node)
            yield from self._note_replies(sent.node, part, loads[sent.node], iter(replies))
            if durability is not None and any(task.error is None for task in part):
                confirmed.append(replies[-1])

    def _serves(self, node: Node, part: Sequence[Task]) -> bool:
        """Whether a node is the master of what it was sent.

        One that stood still answers, when it wakes up, what came before its failover. Nothing of
        that is kept.
        """
        slots = {task.slot for task in part if task.asked is None and task.slot is not None}
        return all(self._table.node_of(slot) == node for slot in slots)

    def _note_replies(
        self, node: Node, part: Sequence[Task], loads: Sequence[Script], replies: Iterator[Any]
    ) -> Operations[None]:
        refusals: dict[Script, BaseException] = {}
        for script, reply in zip(loads, replies, strict=False):
            if isinstance(reply, BaseException):
                refusals[script] = reply
            else:
                self.loaded[node].add(script)
        is_stale = False
        for task in part:
            own = list(islice(replies, task.count))
            if task.asked is not None and not isinstance(own[0], redis.ResponseError):
                del own[0]  # ASKING was granted
            is_stale |= self._note_reply(node, task, own)
        for script, refusal in refusals.items():
            lacking = [task for task in part if task.lacks(script)]
            if lacking:
                yield from self._load_by_eval(node, script, refusal, lacking)
            else:
                self.loaded[node].add(script)  # the node had it
        if is_stale:
            with contextlib.suppress(*REDIS_ERRORS):
                yield RefreshTable(self._table.version)

    def _load_by_eval(
        self, node: Node, script: Script, refusal: BaseException, tasks: Sequence[Task]
    ) -> Operations[None]:
        """Load a script whose SCRIPT LOAD was refused; end its tasks if EVAL is refused as well."""
        if forbids(refusal):
            (replies,) = yield ExchangeAll([NodeExchange(node, *eval_request(script))])
            if isinstance(replies, BaseException):
                return  # the next round finds the lost connection
            if is_loaded_by(replies[0]):
                self.loaded[node].add(script)
                return
            if not forbids(replies[0]):
                refusal = replies[0]
        for task in tasks:
            task.refuse(refusal)

    def _note_reply(self, node: Node, task: Task, replies: Sequence[Any]) -> bool:
        """Note the reply to a task; return whether to read the whole table again."""
        reply = reply_of(replies)
        asked, task.asked, task.error = task.asked, None, None
        if not isinstance(reply, BaseException):
            task.reply = reply
            return False
        if isinstance(reply, MovedError):  # before AskError, of which it is one
            task.error = reply
            return self._table.note_moved(reply.slot_id, address_of(reply.host, reply.port, node))
        if isinstance(reply, AskError):
            task.error, task.asked = reply, address_of(reply.host, reply.port, node)
        elif kind_of(reply) is Kind.RELOAD and task.script is not None:
            self.loaded[node].discard(task.script)
            task.error, task.asked = reply, asked
        elif kind_of(reply) is Kind.AGAIN:
            task.error = reply
        else:
            task.reply = reply
        return False

    def _node_of(self, slot: int | None) -> Node | None:
        return self._table.any_node() if slot is None else self._table.node_of(slot)

    # --- replies ---------------------------------------------------------------------------------

    def _value(self, task: Task) -> Operations[Any]:
        """Return the value of a command's task, or its RMQError."""
        assert isinstance(task.call, Command)
        if isinstance(task.reply, RMQError):
            return task.reply
        if not isinstance(task.reply, BaseException):
            return parsed(task.call, task.reply)
        wrong_key = ""
        if code_of(task.reply) == "WRONGTYPE":
            asks = [Task(task.slot, ("TYPE", key)) for key in task.call.keys]
            with contextlib.suppress(RMQError):
                yield from self._run(asks, task.call.script.name, None)
                wrong_key = key_of_wrong_type(task.call, [ask.reply for ask in asks])
        keys = [rmq_keys.printable(key) for key in task.call.keys]
        return translate(task.reply, task.call.script.name, keys, wrong_key)

    def _raise_refusal(self, task: Task, name: str, words: Sequence[Any]) -> None:
        if isinstance(task.reply, BaseException):
            shown = [w.decode() if isinstance(w, bytes) else str(w) for w in words[1:2]]
            raise translate(task.reply, name, shown) from task.reply

    def _scan(self, name: str, words: Sequence[Any]) -> Operations[Any]:
        """Walk the keys of one master after the other.

        The cursor is b"0" at the beginning and the end, else `<host>:<port>/<cursor of that node>`.
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
                f"{name}: {place} is no master any more, and its keys were not all looked at; "
                "call again"
            )
        task = Task(None, [words[0], cursor or "0", *words[2:]], node)
        yield from self._run([task], name, None)
        self._raise_refusal(task, name, words)
        following, page = task.reply
        if following == b"0":
            later = [master for master in masters if master > node]
            if not later:
                return [b"0", page]
            node = later[0]
        return [b"%s:%d/%s" % (node[0].encode(), node[1], following), page]
