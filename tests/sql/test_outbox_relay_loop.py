"""The loop of a relay: it sends what is written while it runs, and outlives restarts."""

from __future__ import annotations

import threading
import time

import sqlalchemy as sa

import rmq
from rmq.outbox import Outbox, Relay
from tests.patience import wait_for
from tests.sql.stubs import drain, fill, prepared, states


class Running:
    """A relay in a thread."""

    def __init__(self, relay):
        self.stop = threading.Event()
        self.error = None
        self._relay = relay
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        try:
            self._relay.run(self.stop)
        except BaseException as error:
            self.error = error

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self._thread.join(20)
        assert not self._thread.is_alive()


def test_the_loop_sends_what_is_written_while_it_runs_and_ends_when_told(database, client, name):
    engine, outbox = prepared(database), Outbox()
    topic = client.topic(name)
    topic.open()

    with Running(Relay(outbox, engine, client)) as running, topic.consumer() as consumer:
        for number in range(3):
            fill(engine, outbox, name, [number])
            (one,) = consumer.receive(wait=10)
            assert one.body == number
            one.ack()
        stopped = time.monotonic()

    assert time.monotonic() - stopped < 10
    assert running.error is None


def test_an_idle_loop_asks_the_database_about_once_a_second(database, client, name):
    engine, outbox = prepared(database), Outbox()
    asked = []
    sa.event.listen(engine, "before_cursor_execute", lambda *told: asked.append(told[2]))

    with Running(Relay(outbox, engine, client)):
        time.sleep(3)  # the pauses grow to a second within the first
        asked.clear()
        time.sleep(3)
        wait_for(lambda: any("rmq_stub" in one for one in asked))
        found = [one for one in asked if "rmq_stub" in one]

    assert 1 <= len(found) <= 5


def test_the_loop_ends_with_an_error_where_the_table_is_missing(database, client):
    with Running(Relay(Outbox(), database.engine(), client)) as running:
        wait_for(lambda: running.error is not None)

    assert isinstance(running.error, rmq.ConfigurationError)


def test_the_loop_outlives_a_restart_of_the_database(own_database, client, name):
    engine, outbox = prepared(own_database), Outbox()

    with Running(Relay(outbox, engine, client)) as running:
        fill(engine, outbox, name, ["before"])
        wait_for(lambda: states(engine) == {("unconfirmed", 1): 1})
        own_database.server.restart()
        engine.dispose()
        fill(engine, outbox, name, ["after"])
        wait_for(lambda: states(engine) == {("unconfirmed", 1): 2})

    assert running.error is None
    assert drain(client.topic(name)) == ["before", "after"]


def test_the_loop_outlives_a_restart_of_redis(database, own_server, name, caplog):
    engine, outbox = prepared(database), Outbox()
    with rmq.Client(own_server.url, retry_for=0) as client:
        client.topic(name).open()
        own_server.kill()

        with Running(Relay(outbox, engine, client)) as running:
            fill(engine, outbox, name, [1, 2])
            wait_for(lambda: "Redis is away" in caplog.text)
            fill(engine, outbox, name, [3])  # rows are not locked while it waits
            own_server.start()
            wait_for(lambda: states(engine) == {("unconfirmed", 1): 3})

        assert running.error is None
        assert drain(client.topic(name)) == [1, 2, 3]
