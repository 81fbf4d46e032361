"""Define the name of every Redis key that RMQ uses, and the type of its value.

All keys of a slot have the hash tag `{<topic>_<index>}`, so that one script may use them all on a
Redis Cluster. `lua/README.md` describes the keys for people.
"""

from __future__ import annotations

import re
import zlib

from rmq.errors import InvalidType, InvalidValue
from rmq.kernel.core.ids import MessageId, topic_check

NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
SLOTS_MAX = 1024  # per topic

TYPES = {
    "slot": "hash",
    "store": "zset",
    "prepare": "zset",
    "records": "hash",
    "dead": "zset",
    "trash": "zset",
    "deaths": "hash",
    "failures": "hash",
    "arrivals": "zset",
    "merge": "hash",
    "audit": "zset",
    "bodies": "hash",
    "settled0": "set",
    "settled1": "set",
    "pending": "zset",
    "targets": "zset",
    "results": "hash",
    "keeping": "zset",
    "waits": "zset",
    "acked": "stream",
    "ackedparts": "list",
    "batch": "hash",
    "claim": "string",
    "query": "hash",
    "querylog": "list",
    "querymarks": "zset",
    "queries": "zset",
    "leases": "zset",
    "rates": "zset",
    "stage": "list",
    "schedules": "hash",
    "schedule_times": "zset",
    "sink": "hash",
    "event": "hash",
    "waiters": "zset",
    "undelivered": "zset",
    "topic": "hash",
    "history": "hash",
    "topics": "set",
    "scheduled": "set",
    "worker": "string",
    "workers": "zset",
    "leader": "string",
    "job": "hash",
    "joblog": "list",
    "jobs": "zset",
    "batches": "hash",
    "audit_trail": "zset",
    "tokens": "hash",
    "tokens_used": "hash",
    "session": "string",
    "server_secret": "string",
}


def check_name(name: object, field: str) -> str:
    """Check the name of a topic, or a prefix of keys, and return it.

    A name has 1 to 128 characters of `A-Z a-z 0-9 . _ -`.

    Raises:
        InvalidType: The name is not a str.
        InvalidValue: The name is empty, is too long, or has another character.
    """
    if not isinstance(name, str):
        raise InvalidType(f"{field}: {type(name).__name__}; give a str")
    if not NAME.fullmatch(name):
        short = name if len(name) <= 40 else name[:40] + "..."
        given = f"{len(name)} characters" if len(name) > 128 or not name else ascii(short)
        raise InvalidValue(f"{field}: {given}; use 1 to 128 of A-Z a-z 0-9 . _ -")
    return name


class SlotKeys:
    """The keys of one slot, which is a part of a topic."""

    __slots__ = (
        "acked", "ackedparts", "arrivals", "audit", "bodies", "claim_stem", "created", "dead",
        "deaths", "failures", "index", "keeping", "leases", "merge", "middle", "pending",
        "prepare", "queries", "query_stem", "querylog_stem", "querymarks_stem", "rates", "records",
        "results", "settled0", "settled1", "slot", "stage_stem", "store", "targets", "topic",
        "trash", "waits",
    )  # fmt: skip

    def __init__(self, prefix: str, topic: str, index: int, created: bytes = b"") -> None:
        stem = f"{prefix}:{{{topic}_{index}}}:".encode()
        self.topic = topic
        self.index = index
        self.created = created  # stamp of the topic, if the stamp was read
        # The three bytes of an id that its member lacks: slot and check.
        self.middle = (index << 14 | topic_check(prefix, topic)).to_bytes(3, "big")
        self.slot = stem + b"slot"
        self.store = stem + b"store"
        self.prepare = stem + b"prepare"
        self.records = stem + b"records"
        self.dead = stem + b"dead"
        self.trash = stem + b"trash"
        self.deaths = stem + b"deaths"
        self.failures = stem + b"failures"
        self.arrivals = stem + b"arrivals"
        self.audit = stem + b"audit"
        self.bodies = stem + b"bodies"
        self.merge = stem + b"merge"
        self.settled0 = stem + b"settled0"
        self.settled1 = stem + b"settled1"
        self.pending = stem + b"pending"
        self.targets = stem + b"targets"
        self.results = stem + b"results"
        self.keeping = stem + b"keeping"
        self.waits = stem + b"waits"
        self.acked = stem + b"acked"
        self.ackedparts = stem + b"ackedparts"
        self.claim_stem = stem + b"claim:"
        self.query_stem = stem + b"query:"
        self.querylog_stem = stem + b"querylog:"
        self.querymarks_stem = stem + b"querymarks:"
        self.queries = stem + b"queries"
        self.leases = stem + b"leases"
        self.rates = stem + b"rates"
        self.stage_stem = stem + b"stage:"

    @property
    def schedules(self) -> bytes:
        """The key of the topic's schedules. RMQ uses only the key of slot 0."""
        return self.slot.removesuffix(b"slot") + b"schedules"

    @property
    def schedule_times(self) -> bytes:
        """The key of the due times of schedules. RMQ uses only the key of slot 0."""
        return self.slot.removesuffix(b"slot") + b"schedule_times"

    def batch(self, name: str) -> bytes:
        """Return the key of a batch.

        A batch is in a slot of the topic that gets the callback of the batch.
        """
        return self.slot.removesuffix(b"slot") + b"batch:" + name.encode()

    @property
    def channel(self) -> bytes:
        """The prefix of this slot's channels for sharded Pub/Sub."""
        return self.slot.removesuffix(b"slot") + b"wake"

    def id_of(self, member: bytes) -> MessageId:
        """Return the id of a message from its name in the sorted sets of the slot."""
        return MessageId(member[:8] + self.middle + member[8:])


EVENT_SLOTS = 64


class EventKeys:
    """The keys of one event.

    An event belongs to no topic. Events have their own slots, and the CRC-32 of an event's key
    selects the slot.
    """

    __slots__ = ("event", "key", "undelivered", "waiters")

    def __init__(self, prefix: str, key: bytes) -> None:
        stem = events_stem(prefix, zlib.crc32(key) % EVENT_SLOTS)
        self.key = key
        self.event = stem + b"event:" + key
        self.waiters = stem + b"waiters:" + key
        self.undelivered = stem + b"undelivered"


def events_stem(prefix: str, index: int) -> bytes:
    """Return the beginning of the keys of one slot for events. No topic can have this hash tag."""
    return f"{prefix}:{{events:{index}}}:".encode()


def topic_key(prefix: str, topic: str) -> bytes:
    """Return the key of the hash with the settings of a topic."""
    return f"{prefix}:{{{topic}}}:topic".encode()


def history_key(prefix: str, topic: str) -> bytes:
    """Return the key of the hash with a topic's samples, from which RMQ draws charts."""
    return f"{prefix}:{{{topic}}}:history".encode()


def sink_key(prefix: str, topic: str, query: str) -> bytes:
    """Return the key of the hash that records which batches of a query were published."""
    return f"{prefix}:{{{topic}}}:sink:{query}".encode()


def topics_key(prefix: str) -> bytes:
    """Return the key of the set with the names of all topics."""
    return f"{prefix}:topics".encode()


def scheduled_key(prefix: str) -> bytes:
    """Return the key of the set with the names of topics that have schedules."""
    return f"{prefix}:scheduled".encode()


def workers_key(prefix: str) -> bytes:
    """Return the key of the sorted set with the ids of all worker processes."""
    return f"{prefix}:workers".encode()


def worker_key(prefix: str, worker: str) -> bytes:
    """Return the key of the status of a worker process."""
    return f"{prefix}:worker:{worker}".encode()


def leader_key(prefix: str) -> bytes:
    """Return the key that stores the id of the leading `rmq server` process."""
    return f"{prefix}:leader".encode()


def problems_key(prefix: str) -> bytes:
    """Return the key of the hash that stores when `rmq server` first saw each problem."""
    return f"{prefix}:problems".encode()


def job_key(prefix: str, job: str) -> bytes:
    """Return the key of a job. A job's id is the topic's name, a dot and a code."""
    topic, _, code = job.rpartition(".")
    return f"{prefix}:{{{topic}}}:job:{code}".encode()


def job_log_key(prefix: str, job: str) -> bytes:
    """Return the key of the list with the outcomes of a job's messages."""
    topic, _, code = job.rpartition(".")
    return f"{prefix}:{{{topic}}}:joblog:{code}".encode()


def jobs_key(prefix: str) -> bytes:
    """Return the key of the sorted set with the ids of all jobs."""
    return f"{prefix}:jobs".encode()


def batches_key(prefix: str) -> bytes:
    """Return the key of the hash that says in which topic and slot each batch is stored."""
    return f"{prefix}:batches".encode()


def audit_trail_key(prefix: str) -> bytes:
    """Return the key of the audit trail."""
    return f"{prefix}:audit_trail".encode()


def tokens_key(prefix: str) -> bytes:
    """Return the key of the hash with the tokens of the HTTP API, by name."""
    return f"{prefix}:tokens".encode()


def tokens_used_key(prefix: str) -> bytes:
    """Return the key of the hash with the time when each token was last used."""
    return f"{prefix}:tokens_used".encode()


def session_key(prefix: str, digest: str) -> bytes:
    """Return the key of a browser's session. The key contains the digest of the session's id."""
    return f"{prefix}:session:{digest}".encode()


def server_secret_key(prefix: str) -> bytes:
    """Return the key of the secret that all servers share."""
    return f"{prefix}:server_secret".encode()


def shared_key(prefix: str, namespace: str, kind: str, name: str) -> bytes:
    """Return the key of a value, list or set of shared data, or the name of a channel.

    Args:
        prefix: First part of every key.
        namespace: Namespace of the shared data.
        kind: "value", "list", "set" or "channel".
        name: Name that the caller has chosen. It may have any characters.
    """
    return f"{prefix}:shared:{namespace}:{kind}:{name}".encode()


def wake_channel(prefix: str, topic: str) -> bytes:
    """Return the Pub/Sub channel for a topic's wake-ups."""
    return f"{prefix}:{{{topic}}}:wake".encode()


def results_channel(prefix: str, topic: str, index: int) -> bytes:
    """Return the Pub/Sub channel for the results of a slot's messages.

    The names of this channel and of the topic's wake-up channel have the same beginning. So the
    same ACL rules allow both channels. `lua/lib/results/results.lua` builds the same name.
    """
    return f"{prefix}:{{{topic}}}:wake:results:{index}".encode()


# Keys without a topic: single keys, and keys with an id.
_WHOLE = (
    "topics", "scheduled", "workers", "leader", "jobs", "batches", "audit_trail", "tokens",
    "tokens_used", "server_secret",
)  # fmt: skip
_BY_ID = ("worker", "session")


def type_of(key: bytes) -> str | None:
    """Return the type of a key's value in Redis, or None if the key is not a key of RMQ."""
    _, tagged, rest = key.partition(b"}:")  # `rest` may contain a caller's text
    if not tagged:
        for name in _WHOLE:
            if key.endswith(f":{name}".encode()):
                return TYPES[name]
        return next((TYPES[name] for name in _BY_ID if f":{name}:".encode() in key), None)
    return TYPES.get(rest.split(b":", 1)[0].decode("ascii", "replace"))


def printable(key: bytes) -> str:
    """Return a key as printable text. The key of a claim may contain any bytes."""
    text = key.decode(errors="backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
