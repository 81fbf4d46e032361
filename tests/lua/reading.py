"""Reads of all keys of a slot in one call, and of what a slot knows of a group."""

from __future__ import annotations

import functools
import hashlib
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

# Every key that begins as ARGV[1] says: name, type, content. One call in place of two for each key.
READ_KEYS = """
local content = {
  hash = function(name) return redis.call('HGETALL', name) end,
  zset = function(name) return redis.call('ZRANGE', name, 0, -1, 'WITHSCORES') end,
  set = function(name) return redis.call('SMEMBERS', name) end,
  list = function(name) return redis.call('LRANGE', name, 0, -1) end,
  string = function(name) return redis.call('GET', name) end,
  stream = function(name) return redis.call('XRANGE', name, '-', '+') end,
}
local found = {}
for _, name in ipairs(redis.call('KEYS', ARGV[1] .. '*')) do
  local kind = redis.call('TYPE', name).ok
  found[#found + 1] = {name, kind, content[kind](name)}
end
return found
"""


@functools.cache
def sha1(text: str) -> str:
    """The name of a script."""
    return hashlib.sha1(text.encode()).hexdigest()


def pairwise(flat_pairs: list[Any]) -> Iterator[tuple[Any, Any]]:
    """The pairs of a flat list."""
    return zip(flat_pairs[::2], flat_pairs[1::2], strict=True)


SINGLE, PAUSED, HELD, MORE = 1, 2, 4, 8  # flags of the entry of a group


class Entry(NamedTuple):
    """What a slot knows of a group, spelled apart from lua/lib/groups/group_entries.lua."""

    flags: int
    finish: float
    weight: int
    out: bytes | int  # the id that is out, empty for none; or how many are
    priority: int
    largest: int  # no held message has a larger priority; 0: none is held
    lanes: tuple[int, ...]  # their numbers, the oldest first
    place: int  # of the next message, in the newest lane
    share: str
    front: tuple[bytes, ...]

    @property
    def is_stopped(self) -> bool:
        return bool(self.flags & (PAUSED | HELD))


def read_entry(text: bytes, id_of: Callable[[bytes], bytes]) -> Entry:
    flags, finish, weight, member = struct.unpack(">BdB13s", text[:23])

    def number(at: int, size: int = 3) -> int:
        return int.from_bytes(text[at : at + size])

    share, front = text[36], text[37]
    at = 38 + share
    members = [text[n : n + 13] for n in range(at, at + front, 13)]
    older = [number(n) for n in range(at + front, len(text), 3)]
    lanes = (*older, number(29)) if number(26) else ()
    out: bytes | int = int.from_bytes(member[:2])
    if flags & SINGLE:
        out = id_of(member) if member.strip(b"\0") else b""
    return Entry(
        flags, finish, weight, out, number(23), number(26), lanes, number(32, 4),
        text[38:at].decode(), tuple(map(id_of, members)),
    )  # fmt: skip
