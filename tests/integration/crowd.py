"""Many callers that use one client at once."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import redis

from bench.soak.proxy import Proxy, between
from tests.property.driver import Driver
from tests.servers import Server

MANY = 40  # more than go alone
END_S = 60.0  # for threads that take a moment


class Crowd:
    """A client of either kind, and many callers that use it at once."""

    def __init__(self, driver: Driver, raw: redis.Redis) -> None:
        self.driver, self.raw = driver, raw
        self.do = driver.do

    def at_once(self, *calls: Callable[[], Any]) -> list[Any]:
        """Make calls at once; return what each returned or raised."""
        if self.driver.loop is not None:

            async def each() -> list[Any]:
                return await asyncio.gather(*[call() for call in calls], return_exceptions=True)

            return self.driver.loop.run_until_complete(each())
        found: list[Any] = [None] * len(calls)
        start = threading.Barrier(len(calls))

        def one(index: int) -> None:
            start.wait(END_S)
            try:
                found[index] = calls[index]()
            except BaseException as error:
                found[index] = error

        threads = [threading.Thread(target=one, args=[n], daemon=True) for n in range(len(calls))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(END_S)
            assert not thread.is_alive(), "a caller has no answer"
        return found

    def calls(self) -> int:
        """How many scripts Redis has run."""
        return int(self.raw.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"])

    def bodies(self, topic: Any) -> list[Any]:
        """Receive and settle all that waits; return the bodies."""
        consumer, found = topic.consumer(), list[Any]()
        while got := self.do(consumer.receive(1000)):
            self.do(consumer.ack(got))
            found += [one.body for one in got]
        self.do(consumer.close())
        return found


def opened(crowd: Crowd, name: str, **settings: Any) -> Any:
    topic = crowd.driver.client.topic(name, **settings)
    crowd.do(topic.open())
    return topic


@contextlib.contextmanager
def behind_a_proxy(
    crowd: Crowd, server: Server, name: str, **options: Any
) -> Iterator[tuple[Proxy, Crowd, Any]]:
    """The topic once more, as the same kind of client has it behind a proxy."""
    opened(crowd, name)
    with between(server.port) as proxy:
        driver = Driver(proxy.url, crowd.driver.loop is not None, **options)
        yield proxy, Crowd(driver, crowd.raw), driver.client.topic(name)
        driver.close()
