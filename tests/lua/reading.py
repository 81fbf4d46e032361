"""Reads of all keys of a slot in one call."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from typing import Any

# Every key that begins as ARGV[1] says: name, type, content. One call in place of two for each key.
READ_KEYS = """
local content = {
  hash = function(name) return redis.call('HGETALL', name) end,
  zset = function(name) return redis.call('ZRANGE', name, 0, -1, 'WITHSCORES') end,
  set = function(name) return redis.call('SMEMBERS', name) end,
  list = function(name) return redis.call('LRANGE', name, 0, -1) end,
  string = function(name) return redis.call('GET', name) end,
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
