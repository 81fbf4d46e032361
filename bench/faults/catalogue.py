"""The rows of the fault matrix: each fault, and the promise that must hold.

A test is marked with its row, `@pytest.mark.fault("F4")`, and its negative control with
`@pytest.mark.fault("F4", control=True)`. `bench.faults.peer_bugs` lists bugs of other queues.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Lane = Literal["each run", "long run", "not yet"]


@dataclass(frozen=True)
class Row:
    """A fault.

    Attributes:
        number: F and a number, which never changes.
        fault: Description of the fault.
        holds: Promise that must hold, in addition to: no answered message is lost.
        lane: Whether its tests are part of every CI run, of long runs only, or still missing.
        note: Why tests are missing, or what its tests leave out.
    """

    number: str
    fault: str
    holds: str
    lane: Lane = "each run"
    note: str = ""


ROWS = (
    Row("F0", "no fault",
        "RMQ delivers no message twice; priorities are strict within a slot, also for delayed, "
        "merged and failed messages; due messages do not starve priorities"),
    Row("F1", "kill -9 of Redis with an AOF, then a restart",
        "after the restart, Redis has every message whose send returned"),
    Row("F2", "power loss: Redis loses data that was not synced to disk",
        "with `appendfsync always`, Redis loses no message; with `everysec` (the control), it does",
        note="needs a C compiler"),
    Row("F3", "the end of the AOF is missing",
        "Redis starts, and each message is in exactly one queue"),
    Row("F4", "kill -9 of a consumer in its handler",
        "its messages are delivered again once, after their lease, with the next attempt number"),
    Row("F5", "a consumer that is stopped for longer than its lease",
        "RMQ refuses its late ack, nack or extend, which changes nothing"),
    Row("F6", "SIGTERM of a worker",
        "running messages are finished or released at once, and lose no retry"),
    Row("F7", "a message that kills the process of its handler",
        "the message becomes a dead letter after its last retry; other messages continue"),
    Row("F8", "a connection that ends after a command and before its reply",
        "Redis does not execute the command twice, and the batch of the command is delivered"),
    Row("F9", "a slow network with connection resets",
        "heartbeats renew the leases, and no message is delivered twice"),
    Row("F10", "a network that drops all packets without an error",
        "the client notices within its timeout"),
    Row("F11", "a replica that the master cannot reach",
        "a send that waits for a replica is not reported as durable"),
    Row("F12", "a replica that lacks writes becomes the master",
        "messages confirmed with `Replicated(1)` survive; without it (the control), some are lost"),
    Row("F13", "a failover by Sentinel",
        "clients continue, and no write to the old master counts"),
    Row("F14", "the old master comes back after a failover", "no client writes to it"),
    Row("F15", "a master of a Cluster is killed", "slots of other masters continue"),
    Row("F16", "a hash slot of a Cluster moves under load", "no script is executed in part"),
    Row("F17", "the master and the replica of a hash slot are both dead",
        "sends to this slot fail, and the error says that nothing was stored; other slots "
        "continue; no message is lost when the servers return"),
    Row("F18", "Redis has reached maxmemory",
        "RMQ refuses sends; consumers can receive and settle every message",
        note="20 000 messages in each run; RMQ_TEST_LONG=1 has a million"),
    Row("F19", "Redis may evict keys",
        "a warning names the policy; an error names a missing topic or slot; a message without a "
        "record becomes a dead letter; `stats` shows a missing queue",
        note="no warning if the user may not call INFO"),
    Row("F20", "the disk is full",
        "RMQ refuses sends while the disk is full; after a restart, Redis has every message whose "
        "send returned",
        note="20 000 messages in each run; RMQ_TEST_LONG=1 has a million"),
    Row("F21", "Redis' clock jumps forward or back",
        "back: no message is lost or early, no rate is exceeded, schedules continue; forward: "
        "leases and time limits end early, and nothing else is lost"),
    Row("F22", "several producers send the same ids or keys",
        "each message is stored once; the other senders get the status `duplicate`"),
    Row("F23", "a producer, relay or resender of the outbox dies between two steps",
        "each committed message is sent, and no message of a transaction that was rolled back",
        note="needs a PostgreSQL"),
    Row("F24", "SCRIPT FLUSH, many times", "no call fails"),
    Row("F25", "all connections are cut, many times", "no call fails"),
    Row("F26", "a key of RMQ has another type",
        "the error names the key, and RMQ removes nothing"),
    Row("F27", "FLUSHALL", "calls raise `TopicVanished`; the outbox sends lost messages again"),
    Row("F28", "20 000 messages become due, or 20 000 leases expire, in one slot",
        "all messages are delivered, and no call exceeds its limit"),
    Row("F29", "a body or a record that cannot be decoded",
        "the message becomes a dead letter with the reason, and the slot continues"),
    Row("F30", "a program opens a topic with another number of slots than the topic has",
        "RMQ refuses it, and every message can still be received"),
    Row("F31", "many consumers find the same expired leases",
        "each message is given back once and loses one retry"),
    Row("F32", "Redis stops for longer than the client waits",
        "no received batch is lost, and no message loses a retry"),
    Row("F33", "Redis is killed while it rewrites its AOF under load",
        "after the restart, Redis has every message whose send returned",
        note="not tested with an AOF of a gigabyte"),
    Row("F34", "redis-py 5 to 8, RESP2 and RESP3", "all versions give the same results",
        note="pip installs the versions"),
    Row("F35", "all faults in one run, chosen by a seed",
        "no message is lost, and every duplicate has a cause",
        note="10 s in each run; RMQ_TEST_LONG=1 runs three seeds for five minutes each"),
    Row("F36", "shared calls are lost, refused, delayed, cancelled or interrupted, while Redis "
        "dies or its replica becomes the master",
        "each of 96 callers gets the right result for its own message, in order"),
    Row("F37", "processes that send follow-ups die between any two steps, while Redis fails over, "
        "topics are resized or paused, and `rmq server` is killed",
        "each follow-up of an acked message or a dead letter, and each copy of a dead letter, is "
        "sent once, through a chain of five topics"),
    Row("F38", "messages are cancelled while their workers are killed, Redis fails over and the "
        "topic is resized",
        "each message ends once, as succeeded or cancelled; a requested delivery is the last one"),
    Row("F39", "processes that handle messages with results die between any two steps, while "
        "messages are cancelled, redriven and purged, Redis fails over, the topic is resized or "
        "paused, and `rmq server` is killed",
        "no result contradicts the queue at any moment, and no result of an ended message changes"),
    Row("F40", "processes whose handlers have steps and cursors die or stand still between any two "
        "acts of a step, while Redis fails over, and the topic is resized or paused",
        "no step whose value is stored runs again, later attempts get this value, and a step with "
        "`rmq.ledger.once` takes effect once"),
    Row("F41", "programs that fill batches, processes that handle or purge members, and servers "
        "die between any two steps, while members expire, a batch is cancelled, Redis fails over, "
        "and the topics are resized or paused",
        "each callback is sent once, not before the last member has ended, and with the counts of "
        "its batch"),
    Row("F42", "processes that suspend messages, and processes that signal events, die between any "
        "two steps, while Redis fails over, the topic is resized or paused, and `rmq server` is "
        "killed",
        "each waiting message continues once for each wait: with the first signalled body, or "
        "after its time limit"),
    Row("F43", "workers of Celery and their child processes are killed while tasks run, and Redis "
        "is killed or fails over",
        "each task with `acks_late` ends, and none runs before its ETA; a task runs again only if "
        "its process was killed or its lease has ended"),
    Row("F44", "one of two servers is killed while programs consume over HTTP",
        "the programs continue at the other server, which accepts the receipts of the killed one; "
        "messages in flight are delivered again after their leases"),
    Row("F45", "processes that ack messages in each way, and a query, die before any of their "
        "scripts, while Redis fails over or reaches `maxmemory`, the topic is resized or paused, "
        "and the history reaches its limits",
        "each acked message is in the history once, or was removed by a limit; no other message is "
        "in it; a reader gets each message once, or `HistoryLost` names the gap"),
)  # fmt: skip
