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
        "no message is delivered twice; priorities are strict in a slot, also for delayed, merged "
        "and failed messages; due messages do not starve them"),
    Row("F1", "kill -9 of Redis with an AOF, then a restart",
        "every answered message is there after the restart"),
    Row("F2", "power loss: data that was not synced are gone",
        "`appendfsync always` loses nothing; `everysec` is the control, and loses",
        note="needs a C compiler"),
    Row("F3", "an AOF without its end",
        "Redis starts, and each message is in exactly one queue"),
    Row("F4", "kill -9 of a consumer in its handler",
        "its messages come back once, after their lease, with the next attempt"),
    Row("F5", "a consumer that is stopped for longer than its lease",
        "its late ack, nack or extend is refused and changes nothing"),
    Row("F6", "SIGTERM of a worker",
        "running messages are finished or released at once, at no cost of a retry"),
    Row("F7", "a message that kills the process of its handler",
        "it becomes a dead letter after its last try; other messages continue"),
    Row("F8", "a connection that ends after the command and before its reply",
        "the command is not executed twice; its batch is delivered"),
    Row("F9", "a slow line with resets", "heartbeats keep leases; nothing is delivered twice"),
    Row("F10", "a line that drops everything without an error",
        "the client notices within its timeout"),
    Row("F11", "a replica that the master does not reach",
        "a send that asks for a replica is not reported as durable"),
    Row("F12", "a replica that has missed writes takes over",
        "messages confirmed with `Replicated(1)` are there; without it, some are lost (control)"),
    Row("F13", "a failover by Sentinel", "work continues; no write of the old master counts"),
    Row("F14", "the old master comes back", "no client writes to it"),
    Row("F15", "a master of a Cluster is killed", "other slots continue"),
    Row("F16", "a slot of a Cluster moves under load", "no script is executed in part"),
    Row("F17", "master and replica of a slot are both dead",
        "sends there fail as not done; other slots continue; no message is lost when they return"),
    Row("F18", "Redis is at maxmemory",
        "sends are refused; consumers can take and settle every message",
        note="20 000 messages in each run; RMQ_TEST_LONG=1 has a million"),
    Row("F19", "Redis may evict keys",
        "a warning names the policy; a missing topic or slot is an error with its name, and no "
        "message moves; a message without a record is a dead letter; a missing queue shows in "
        "`stats`",
        note="no warning if the user may not call INFO"),
    Row("F20", "the disk is full",
        "sends are refused while it is full; every answered message is there after a restart",
        note="20 000 messages in each run; RMQ_TEST_LONG=1 has a million"),
    Row("F21", "Redis' clock steps forward or back",
        "back: no message is lost or early, no rate is exceeded, and schedules continue; forward: "
        "leases and time limits (expiry, retention, dedup window) end early, and no more is lost"),
    Row("F22", "several producers send the same ids or keys",
        "each message is stored once; other senders get the answer `duplicate`"),
    Row("F23", "a producer, relay or resender of the outbox dies between two steps",
        "each committed message is sent, and no message of a rollback", note="needs a PostgreSQL"),
    Row("F24", "SCRIPT FLUSH again and again", "no call fails"),
    Row("F25", "all connections are cut again and again", "no call fails"),
    Row("F26", "a key of RMQ holds another type", "an error names the key; nothing is removed"),
    Row("F27", "FLUSHALL", "`TopicVanished`; the outbox sends lost messages again"),
    Row("F28", "20 000 messages are due, or 20 000 leases have ended, in one slot",
        "all come back, and no call does more than its limit"),
    Row("F29", "a body or a record that cannot be read", "it becomes a dead letter with "
        "the reason; the slot continues"),
    Row("F30", "a live topic is opened with another number of slots",
        "it is refused; no message is stranded"),
    Row("F31", "many consumers find the same ended leases",
        "each goes back once and costs one retry"),
    Row("F32", "Redis stops for longer than the client waits",
        "no batch is lost, no retry is spent"),
    Row("F33", "Redis rewrites its AOF under load and is killed during the rewrite",
        "every answered message is there after the restart",
        note="an AOF of a gigabyte is not tried"),
    Row("F34", "redis-py 5 to 8, RESP2 and RESP3", "the same answers",
        note="pip brings the versions"),
    Row("F35", "all faults at once, by a seed",
        "nothing is lost, and every duplicate has a cause",
        note="10 s in each run; RMQ_TEST_LONG=1 plays three seeds for five minutes each"),
    Row("F36", "shared calls that are lost, refused, held up, cancelled or interrupted, while "
        "Redis dies or its replica takes over",
        "each of 96 callers gets the right answer about its own message, in order"),
)  # fmt: skip
