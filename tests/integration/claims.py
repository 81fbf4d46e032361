"""Handlers under claims of a business key, and the claims that Redis keeps."""

from __future__ import annotations

from typing import Any

import pytest
import redis

import rmq
from tests.servers import Server

KEY = "payment"


def by_key(body: Any) -> Any:
    return body[KEY]


def once(**options: Any) -> Any:
    return rmq.idempotent(rmq.Claims(), key=options.pop("key", by_key), **options)


class Kept:
    """The claims of a topic, looked at from outside."""

    def __init__(self, server: Server, name: str) -> None:
        self.redis = redis.Redis.from_url(server.url, decode_responses=True)
        self.name = name

    def keys(self) -> list[str]:
        return sorted(self.redis.scan_iter(f"rmq:{{{self.name}_*}}:claim:*"))

    def states(self) -> dict[str, str]:
        found = {key.partition(":claim:")[2]: self.redis.get(key) for key in self.keys()}
        return {key: value.split()[0] for key, value in found.items() if value}

    def key(self, of: str) -> str:
        (found,) = [one for one in self.keys() if one.endswith(f":claim:default:{of}")]
        return found


@pytest.fixture
def kept(server: Server, name: str) -> Kept:
    return Kept(server, name)
